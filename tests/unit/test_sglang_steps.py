"""The loop inside SGLang, tested without it: on the toy models, against the loop of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.protocols import Rule
from semspec.rules.logprob import LogProb
from semspec.sglang_plugin import compat, compat_speculative, rules, trees
from semspec.sglang_plugin.protocol import rule_options
from semspec.sglang_plugin.steps import Steps
from semspec.sglang_plugin.verification import Options, Verification
from semspec.types import Context, Outcome, Sampling
from tests.support.inside import Asked, drafts_of, rows_of, run, steps
from tests.support.law import speculative_plan, toy_kit

GREEDY = Sampling(0.0)
LIMIT = 40
TOYS = [Toy(vocabulary=12, seed=seed, likeness=0.5, stop=seed % 2 == 0) for seed in range(6)]
RULES: tuple[Rule, ...] = (
    LogProb(threshold=-3.5),
    LogProb(threshold=-2.0),
    LogProb(threshold=0.0),
    LogProb(threshold=-50.0),
    LogProb(threshold=-3.5, score_temperature=0.5),
)


def in_the_loop(toy: Toy, rule: Rule, prompt: list[int], cap: int, units: int) -> Outcome:
    models = toy.models()
    kit = toy_kit(rule, models["target"], GREEDY, 0, "paragraph", cap, salvage=True)
    context = Context(1, prompt)
    plan = speculative_plan(LanguageModel(), rule, nested=LanguageModel())
    made = plan(context, kit, LIMIT, Steady(units, cap))
    (done,) = Driver(dict(models)).run([(context, made)])
    return done.value


def request(i: int, prompt: list[int], asked: Steps | None, **more: Any) -> Asked:
    return Asked(f"r{i}", prompt, LIMIT, asked, GREEDY, **more)


@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: f"seed{toy.seed}")
def test_greedy_texts_and_rounds_are_the_loop_s(toy: Toy, units: int) -> None:
    """Requests with different rules in one batch: every text, and what became of every draft."""
    cap = 7
    prompts = [[0, 1], [3, 5], [4, 0], [1, 1]]
    given = [
        (prompt, rule) for prompt, rule in zip(prompts * 2, (RULES * 2)[:8], strict=True)
    ]  # fmt: skip
    drafts, target = drafts_of(toy, 1 + units * cap), toy.models()["target"]
    requests = [
        request(i, prompt, steps(rule, draft_length=units, step_cap=cap, nested_length=2))
        for i, (prompt, rule) in enumerate(given)
    ]
    loops = {}

    def watched(one: Asked, gained: list[int], rows: torch.Tensor) -> list[int]:
        loops[one.rid] = next(s.loop for s in drafts._sessions.values() if s.request is one)
        return gained

    outputs = run(drafts, target, requests, watched)
    for i, (prompt, rule) in enumerate(given):
        expected = in_the_loop(toy, rule, prompt, cap, units)
        assert outputs[i] == expected.tokens
        loop = loops[f"r{i}"]
        assert loop is not None and loop.asked is None
        for own, theirs in zip(loop.problem.rounds, expected.rounds, strict=True):
            for name in ("drafted", "ends", "kept", "written", "handed", "handed_ends", "scores"):
                assert getattr(own, name) == getattr(theirs, name), name


def test_the_rule_matters() -> None:
    texts = [[tuple(in_the_loop(toy, rule, [0, 1], 7, 1).tokens) for toy in TOYS] for rule in RULES]
    assert len(set(map(tuple, texts))) >= 3


def test_a_draft_has_room_in_the_tree() -> None:
    """However much is asked for, and whatever the rule."""
    toy = TOYS[1]
    for n in (2, 3, 6):
        asked = steps(LogProb(threshold=-1.2), draft_length=4, step_cap=50, nested_length=30)
        sizes = asked.within(n - 1)
        assert sizes.units * sizes.cap <= n - 1 and 1 <= sizes.nested <= n - 1
        drafts, target = drafts_of(toy, n), toy.models()["target"]
        (output,) = run(drafts, target, [request(0, [0, 1], asked)])
        assert len(output) == LIMIT


def test_what_interrupts_a_request_leaves_a_rejected_step_to_the_target() -> None:
    """After a retraction SGLang writes a token by itself; a step that was rejected is finished as before."""
    toy, cap = TOYS[1], 7
    models = toy.models()
    target = models["target"]
    none, every = LogProb(threshold=0.0), LogProb(threshold=-50.0)
    alone = in_the_loop(toy, none, [0, 1], cap, 1).tokens  # nothing is kept: the target's own text
    boundary = toy_kit(None, target, GREEDY, 0, "paragraph", cap).boundary()
    ends = [i for i, token in enumerate(alone, start=1) if boundary.feed(token) is not None]
    within = 0
    for at in range(1, 12):
        drafts = drafts_of(toy, 1 + cap)
        one = request(0, [0, 1], steps(none, step_cap=cap, nested_length=2))
        passes = length = 0

        def interrupted(one: Asked, gained: list[int], rows: torch.Tensor) -> list[int]:
            nonlocal passes, length
            passes += 1
            if passes != at:  # noqa: B023 (called within the turn)
                return gained
            # it leaves the batch, its text is read again, and a token is written at its end
            drafts.erase_match_state([one.rid])  # noqa: B023
            text = [*one.prompt, *one.output, *gained]
            length = len(text) - len(one.prompt)
            one.steps = steps(every, step_cap=cap)
            return [*gained, int(rows_of(target, text, [])[0].argmax())]

        (output,) = run(drafts, target, [one], interrupted)
        own = length + 1 if length in ends else next(end for end in ends if end > length)
        text = [0, 1, *alone[:own]]
        while len(text) < 2 + LIMIT:
            text.append(int(rows_of(models["draft"], text, [])[0].argmax()))
        assert output == text[2:]
        assert not drafts._sessions and not drafts._away
        within += own > length + 1
    assert within > 2


@pytest.mark.parametrize("rule", RULES[:3])
def test_a_text_that_was_read_again_goes_on_as_if_nothing_had_happened(rule: Rule) -> None:
    """Wherever it leaves the batch, if it comes back with the text that it had."""
    toy, cap = TOYS[1], 7
    target = toy.models()["target"]
    alone = in_the_loop(toy, rule, [0, 1], cap, 1).tokens
    interrupted = 0
    for at in range(1, 9):
        drafts, left = drafts_of(toy, 1 + cap), at

        def away(one: Asked, gained: list[int], rows: torch.Tensor) -> list[int]:
            nonlocal left
            left -= 1
            if not left:
                drafts.erase_match_state([one.rid])  # noqa: B023 (called within the turn)
            return gained

        asked = request(0, [0, 1], steps(rule, step_cap=cap, nested_length=2))
        assert run(drafts, target, [asked], away) == [alone]
        interrupted += left <= 0
    assert interrupted > 4


def test_a_retracted_text_is_read_again_up_to_its_last_token() -> None:
    request: Any = SimpleNamespace(output_ids=[5, 6, 7], return_logprob=False)
    compat_speculative.take_back(None, request)
    assert request.output_ids == [5, 6, 7], "SGLang's own requests are left alone"
    compat_speculative.goes_on_exactly(request)
    compat_speculative.take_back(None, request)
    assert request.output_ids == [5, 6] and compat_speculative.held(request) == 7
    request.output_ids += [7, 8]
    assert compat_speculative.held(request) is None, "it is there again"
    compat_speculative.take_back(None, request)
    assert compat_speculative.held(request) == 8
    request.return_logprob = True
    compat_speculative.take_back(None, request)
    assert request.output_ids == [5, 6, 7]


def test_an_unfinished_step_is_counted_from_its_first_token() -> None:
    toy, cap = TOYS[1], 7
    target = toy.models()["target"]
    drafts = drafts_of(toy, 1 + cap)
    one = request(0, [0, 1], steps(LogProb(threshold=0.0), step_cap=cap, nested_length=2))
    seen = []

    def watched(one: Asked, gained: list[int], rows: torch.Tensor) -> list[int]:
        (session,) = drafts._sessions.values()
        assert session.loop is not None
        opened = session.loop.opened()
        text = [*one.output, *gained]
        boundary, length = session.loop.problem.kit.boundary(), 0
        for token in text:
            length = 0 if boundary.feed(token) is not None else length + 1
        seen.append((opened, length))
        return gained

    run(drafts, target, [one], watched)
    assert seen.pop()[0] == 0  # the end of the text ends the step
    assert all(opened == length for opened, length in seen)
    assert {opened > 0 for opened, _ in seen} == {True, False}


def test_a_request_that_is_off_or_too_long_gets_no_drafts() -> None:
    toy = TOYS[1]
    drafts = drafts_of(toy, 4)
    drafts.model.context_limit = 5
    asked = steps(LogProb(threshold=-1.0))
    given = [
        request(0, [0, 1], asked, off=True),
        request(1, [0, 1, 2, 3, 4, 5], asked),
        request(2, [0, 1], None),
        request(3, [0, 1], asked),
    ]
    drafts.meet([(one.rid, one, one.prompt, one.output) for one in given])
    lengths = [len(one.prompt) for one in given]
    drafts.batch_get([one.rid for one in given], [one.prompt for one in given], lengths)
    assert drafts.counts[:2] == [1, 1] and drafts.counts[2] == 3 and drafts.counts[3] > 1
    assert [loop is not None for loop in drafts.loops] == [False, False, False, True]
    assert not drafts.nothing_drafted
    drafts.meet([(one.rid, one, one.prompt, one.output) for one in given[:2]])
    drafts.batch_get([one.rid for one in given[:2]], [one.prompt for one in given[:2]], lengths[:2])
    assert drafts.nothing_drafted and not any(drafts.loops)
    for width, kind in ((4, "drafted"), (1, "plain"), (1, "plain")):
        drafts.verified(["r0", "r1"], width, torch.zeros(2 * width, 4), None)
        assert drafts.passes[kind] > 0
    assert drafts.passes == {"drafted": 1, "plain": 2}


def test_rows_are_forced_and_others_left() -> None:
    logits = torch.randn(6, 5)
    edited = trees.written(logits, torch.tensor([1, 4]), torch.tensor([3, 0]))
    assert edited.argmax(-1).tolist()[1] == 3 and edited.argmax(-1).tolist()[4] == 0
    assert torch.equal(edited.softmax(-1)[1], torch.eye(5)[3])
    left = [0, 2, 3, 5]
    assert torch.equal(edited[left], logits[left])


def named(**given: Any) -> Any:
    return rules.named(rule_options({"semspec": given}), {"accept": "lossless"})


def test_requests_name_a_rule_for_steps() -> None:
    asked = named(accept="logprob", threshold=-3, draft_length=2, step_cap=40)
    assert asked == Steps(rule=LogProb(threshold=-3.0), draft_length=2, step_cap=40)
    asked = named(accept="logprob", threshold=-3, score_temperature=0.6)
    assert asked == Steps(rule=LogProb(threshold=-3.0, score_temperature=0.6))
    assert named(accept="off") is None and named() is None
    server = {"accept": "logprob", "threshold": -2.0, "nested_length": 7}
    assert rules.named({}, server) == Steps(rule=LogProb(threshold=-2.0), nested_length=7)
    assert rules.named({"accept": "typical"}, server) is not None
    for wrong, what in (
        ({"accept": "logprob", "threshold": 1.0}, "above 0"),
        ({"accept": "logprob", "draft_length": 0}, "at least 1"),
        ({"accept": "logprob", "score_temperature": 1.5}, "above 0 up to 1"),
        ({"accept": "logprob", "theta": 0.1}, "has no option theta"),
        ({"accept": "typical", "draft_length": 2}, "has no option draft_length"),
        ({"accept": "off", "threshold": -1.0}, "no options"),
        ({"accept": "judge"}, "this server has only"),
    ):
        with pytest.raises(UserError, match=what):
            named(**wrong)


def test_every_request_has_values_of_its_own_where_any_may_have_some() -> None:
    """Or SGLang would hand one that has none a None for each of its tokens."""
    hook, req = compat.by_pass("key", lambda: True), SimpleNamespace(customized_info=None)
    hook(None, None, 0, req, None)
    assert req.customized_info["key"][0:7] == []
    req.customized_info["key"].append(["a"])
    hook(None, None, 0, req, None)
    assert req.customized_info["key"][7:9] == ["a"]


def test_values_of_passes_are_handed_out_once_wherever_the_list_is_cut() -> None:
    hook, req = compat.by_pass("key"), SimpleNamespace(customized_info=None)
    hook(None, None, 0, req, None)
    req.customized_info = {"key": [["a"]], "other": [1]}
    for value in (None, ["b", "c"]):
        hook(None, None, 0, req, None)
        req.customized_info["key"].append(value)
    assert req.customized_info["key"][0:9] == ["a", "b", "c"]
    assert req.customized_info["key"][9:12] == []
    req.customized_info["key"].append(["d"])
    hook(None, None, 0, req, None)
    assert req.customized_info["key"][12:40] == ["d"]
    assert req.customized_info["other"] == [1] and req.customized_info["key"][0] == ["a"]


def test_hooks_on_one_target_become_one() -> None:
    seen = []

    def hook(name: str, result: Any) -> Any:
        def noted(given: Any, *rest: Any) -> Any:
            seen.append((name, given, rest))
            return result

        return noted

    made = [compat.Hook("a.b", hook("first", None), "AFTER"), compat.Hook("c.d", print, "AROUND")]
    made.append(compat.Hook("a.b", hook("second", 2), "AFTER"))
    single = compat.one_for_each(made)
    assert [one.target for one in single] == ["a.b", "c.d"] and single[1].function is print
    assert single[0].function(1, "x") == 2
    assert seen == [("first", 1, ("x",)), ("second", 1, ("x",))]
    with pytest.raises(AssertionError, match=r"c\.d"):
        compat.one_for_each([compat.Hook("c.d", print, "AROUND")] * 2)


@pytest.mark.parametrize("drafter", ["SEMSPEC_LM", "NGRAM", ""])
def test_a_rule_for_steps_needs_somebody_who_drafts(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat_speculative, "algorithm", lambda: drafter)
    made = Verification(Options())
    asked = request(0, [0, 1], None).sampling_params
    asked.custom_params = {"semspec": {"accept": "logprob"}}
    if not drafter:
        with pytest.raises(ValueError, match="does not draft"):
            made.check_request(None, asked, 100)
        return
    made.check_request(None, asked, 100)
    assert made.steps(asked) == Steps(rule=LogProb())
    asked.regex = "a+"
    assert made.steps(asked) is None
    with pytest.raises(ValueError, match="grammar"):
        made.check_request(None, asked, 100)
    asked.regex, asked.custom_params = None, {"semspec": {"accept": "semantic_plus"}}
    if drafter == "NGRAM":
        with pytest.raises(ValueError, match="drafts with NGRAM"):
            made.check_request(None, asked, 100)
    else:
        made.check_request(None, asked, 100)
