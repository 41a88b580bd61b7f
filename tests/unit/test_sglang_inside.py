"""A whole problem as one request, without SGLang: the request, the reply, and when a run is solved this way."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from semspec import registry
from semspec.choices.inside import asked_of, described, why_not
from semspec.config import RunConfig
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines._sglang import identity, requests
from semspec.engines._sglang.engine import SglangEngine
from semspec.engines.sglang import Sglang
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.loading.loaded import Loaded
from semspec.protocols import InServer, Kit, ProbeSource, Rule, Verified
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, StepSession
from semspec.rules._tokens import LosslessSession, TokenRule
from semspec.rules.logprob import LogProb
from semspec.serve.figures import Speculation
from semspec.sglang_plugin import protocol, rounds, rules
from semspec.sglang_plugin.load import Lightly, Load, checked
from semspec.sglang_plugin.model_drafts import ModelOptions
from semspec.sglang_plugin.steps import Steps
from semspec.sglang_plugin.verification import Options, Verification
from semspec.types import (
    Answer,
    Context,
    Draft,
    Generate,
    Outcome,
    Query,
    Read,
    Round,
    Sampling,
    What,
)
from tests.support.inside import Asked, drafts_of, run
from tests.support.law import speculative_plan, toy_kit
from tests.support.pair import configuration

TOYS = [Toy(vocabulary=12, seed=seed, likeness=0.5, stop=seed % 2 == 0) for seed in range(4)]
LIMIT, CAP = 40, 7
GREEDY = Sampling(0.0)
URL = ("engine=sglang", "engine.target_url=http://127.0.0.1:1")
THERE: dict[str, Any] = {
    "version": "1",
    "draft": "embedded/tiny-draft",
    "split": "paragraph",
    "width": 64,
    "rules": ["logprob", "semantic_plus"],
    "probes": {"target": "", "draft": ""},
}


def in_the_loop(toy: Toy, rule: Rule, max_repeats: int = 0) -> Outcome:
    models = toy.models()
    kit = toy_kit(rule, models["target"], GREEDY, 0, "paragraph", CAP, salvage=True)
    context = Context(1, [0, 1])
    plan = speculative_plan(LanguageModel(), rule, nested=LanguageModel())
    made = plan(context, replace(kit, max_repeats=max_repeats), LIMIT, Steady(2, CAP))
    (done,) = Driver(dict(models)).run([(context, made)])
    return done.value


# ---- rounds ---------------------------------------------------------------------------------------


def told(outcome: Outcome) -> list[dict[str, Any]]:
    at, entries = 0, []
    for done in outcome.rounds:
        entries.append(json.loads(json.dumps(rounds.whole(done, at))))
        at += len(done.tokens)
    return entries


@pytest.mark.parametrize("threshold", [0.0, -2.0, -3.5])
def test_rounds_come_back_as_they_were(threshold: float) -> None:
    count = 0
    for toy in TOYS:
        outcome = in_the_loop(toy, LogProb(threshold=threshold))
        found = rounds.read({protocol.ROUNDS: told(outcome)}, outcome.tokens)
        assert found == outcome.rounds
        count += len(found)
    assert count > 10


def test_what_no_round_accounts_for_is_the_target_s() -> None:
    """After a retraction SGLang writes a token by itself, and a loop that was given up told nothing more."""
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    entries, tokens = told(outcome), outcome.tokens
    for missing in (0, 1, len(entries) - 1):
        found = rounds.read({protocol.ROUNDS: entries[:missing] + entries[missing + 1 :]}, tokens)
        assert [t for done in found for t in done.tokens] == tokens
        assert found[missing].handed == outcome.rounds[missing].tokens


def test_where_a_loop_rests_the_target_s_tokens_need_not_wait_for_a_round() -> None:
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    first, second, *_ = told(outcome)
    tokens, behind = outcome.tokens, second["at"]
    rests, wakes = rounds.mark(behind, True), rounds.mark(behind + 3, False)

    def read(entries: Any, there: int, **more: Any) -> list[list[int]]:
        found = rounds.read({protocol.ROUNDS: entries}, tokens[:there], **more)
        return [done.tokens for done in found]

    assert read([rests], 9, ended=False, known=1) == [tokens[:9]]
    assert read([first, rests], behind + 2, ended=False) == [tokens[:behind], tokens[behind:behind + 2]]  # fmt: skip
    known: dict[str, Any] = {"known": 2, "upto": behind + 2, "ended": False}
    assert read([first, rests], behind + 3, **known) == [[tokens[behind + 2]]]
    # it judges again: what stands behind belongs to a round that is not over
    assert read([first, rests, wakes], behind + 5, **known) == [[tokens[behind + 2]]]
    assert read([rounds.mark(0, True)], len(tokens)) == [tokens]
    for wrong in (rounds.mark(len(tokens) + 1, True), rounds.mark(0, True)):
        with pytest.raises(UserError, match="in an unknown form"):
            read([first, wrong], len(tokens))


def test_other_rounds_are_refused_in_a_line() -> None:
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    first, *more = told(outcome)
    for wrong in (
        [{}],
        ["x"],
        [first | {"kept": len(outcome.tokens) + 1}],
        [first | {"at": 3}, first | {"at": 1}],
        [first | {"gone": None}],
        [first | {"seconds": []}],
        [first, first],
        [first | {"kept": 0, "written": 0, "handed": 0}],
    ):
        with pytest.raises(UserError, match="same version") as refused:
            rounds.read({protocol.ROUNDS: wrong}, outcome.tokens, "http://a")
        assert "\n" not in str(refused.value)
    for nothing in ({}, {protocol.ROUNDS: []}, {protocol.ROUNDS: None}):
        with pytest.raises(UserError, match="without judging steps"):
            rounds.read(nothing, outcome.tokens)
    assert more


# ---- the request ----------------------------------------------------------------------------------


def test_the_prompt_s_last_token_travels_apart() -> None:
    asked = {"accept": "logprob", "threshold": -4.0}
    payload = requests.inside([5, 6, 7], GREEDY, 20, frozenset({9}), asked, 3)
    params = payload["sampling_params"]
    assert payload["input_ids"] == [5, 6] and params["max_new_tokens"] == 21
    own = params["custom_params"]["semspec"]
    assert own == {**asked, "whole_rounds": True, "prompt_end": 7}
    protocol.check(params["custom_params"])
    assert params["sampling_seed"] == 3
    for ids in ([7], [5, 9]):  # nothing else to read, or it would end the text
        payload = requests.inside(ids, GREEDY, 20, frozenset({9}), asked, 3)
        assert payload["input_ids"] == ids
        assert payload["sampling_params"]["max_new_tokens"] == 20
        assert "prompt_end" not in payload["sampling_params"]["custom_params"]["semspec"]


def test_where_tokens_are_verified_the_server_is_asked_as_by_anybody() -> None:
    payload = requests.inside([5, 6, 7], GREEDY, 20, frozenset({9}), {"accept": "lossless"}, 3)
    params = payload["sampling_params"]
    assert payload["input_ids"] == [5, 6, 7] and params["max_new_tokens"] == 20
    assert params["custom_params"] == {"semspec": {"accept": "lossless"}}
    protocol.check(params["custom_params"])
    assert Verification(Options()).of(params["custom_params"], GREEDY) is None  # SGLang's own
    answer = Answer()
    meta = {"prompt_tokens": 30, "cached_tokens": 20, "spec_verify_ct": 3}
    requests.take_inside(payload, {"output_ids": [4, 4, 8, 9], "meta_info": meta}, answer, "a")
    (done,) = answer.rounds
    assert answer.tokens == done.tokens == done.handed == [4, 4, 8, 9] and not done.drafted
    assert done.passes == {"target": 4} and done.fed["target"] == 10
    assert done.cached["target"] == 20 and done.note.startswith("verified by the server")
    assert not done.accepted_inside and not done.drafted_inside


def test_replies_of_a_server_that_verifies_tokens_become_rounds_of_what_is_new() -> None:
    payload = requests.inside([5], GREEDY, 20, frozenset({9}), {"accept": "lossless"}, 3)
    written = [4, 4, 8, 2, 3, 7, 9]
    said: list[tuple[int, dict[str, Any]]] = [
        (1, {}),  # the pass over the prompt has written the first token
        (1, {}),
        (4, {}),
        (
            7,  # SGLang tells its counts at the end
            {
                "finish_reason": {"type": "stop"},
                "spec_verify_ct": 3,
                "spec_correct_drafts_histogram": [1, 0, 1, 1],
                "spec_num_proposed_drafts": 12,
            },
        ),
    ]
    taken, found = requests.Taken(), []
    for count, meta in said:
        answer = Answer()
        reply = {"output_ids": written[:count], "meta_info": {"prompt_tokens": 1, **meta}}
        requests.take_inside(payload, reply, answer, "a", taken)
        found += answer.rounds
    assert [done.handed for done in found] == [[4], [4, 8, 2], [3, 7, 9]]
    assert [done.passes for done in found] == [{"target": 1}, {}, {"target": 3}]
    figures = Speculation.of(found, 4)
    assert figures.drafts == ((4, 0), (4, 2), (4, 3)) and figures.nested == 0
    assert (figures.by_draft, figures.by_target, figures.tokens) == (5, 2, 7)
    assert figures.metrics()["acceptance_histogram"] == [1, 0, 1, 1, 0]
    # an answer that is cut has fewer tokens than were accepted
    short = Speculation.of([replace(found[-1], handed=[3, 7])], 4)
    assert (short.by_draft, short.by_target, short.accepted) == (2, 0, 5)


def test_a_reply_becomes_an_answer() -> None:
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    payload = requests.inside([0, 99], GREEDY, LIMIT, frozenset(), {}, 3)
    meta = {protocol.ROUNDS: told(outcome), "prompt_tokens": 30, "cached_tokens": 20}
    answer = Answer()
    reply = {"output_ids": [99, *outcome.tokens], "meta_info": meta}
    requests.take_inside(payload, reply, answer, "http://a")
    assert answer.tokens == outcome.tokens
    assert [done.tokens for done in answer.rounds] == [done.tokens for done in outcome.rounds]
    first, was = answer.rounds[0], outcome.rounds[0]
    assert first.passes["target"] == was.passes["target"] + 1
    assert first.fed["target"] == was.fed["target"] + 10
    assert first.cached["target"] == was.cached.get("target", 0) + 20
    with pytest.raises(UserError, match="another version"):  # a plugin that did not know of it
        requests.take_inside(payload, {**reply, "output_ids": outcome.tokens}, Answer(), "a")
    with pytest.raises(UserError, match="returned no tokens"):
        requests.take_inside(payload, {**reply, "output_ids": [99]}, Answer(), "a")


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_reply_that_grows_is_taken_round_by_round(cut: int) -> None:
    """Whatever a stream shows at a time, every round is taken once, and all together are those of the whole reply."""
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    payload = requests.inside([0, 99], GREEDY, LIMIT, frozenset(), {}, 3)
    entries = told(outcome)
    ends = [entry["at"] + len(done.tokens) for entry, done in zip(entries, outcome.rounds, strict=True)]  # fmt: skip
    whole, taken, found = Answer(), requests.Taken(), list[Round]()
    meta = {"prompt_tokens": 30, "cached_tokens": 20}
    output = [99, *outcome.tokens]
    shown = [*range(0, len(output), cut), len(output)]
    for upto in shown:
        last = upto == len(output)
        rounds_so_far = [e for e, end in zip(entries, ends, strict=True) if end <= upto - 1]
        own = {**meta, protocol.ROUNDS: rounds_so_far, "finish_reason": {} if last else None}
        answer = Answer()
        reply = {"output_ids": output[:upto], "meta_info": own}
        requests.take_inside(payload, reply, answer, "http://a", taken)
        assert requests.ended(reply) == last
        assert answer.tokens == [token for done in answer.rounds for token in done.tokens]
        found += answer.rounds
    reply = {"output_ids": output, "meta_info": {**meta, protocol.ROUNDS: entries}}
    requests.take_inside(payload, reply, whole, "http://a")
    assert found == whole.rounds and taken.tokens == len(outcome.tokens)


STEPS = {"accept": "logprob", "draft_length": 1}


class Teller:
    """A place that tells an outcome round by round, behind whatever prompt and rounds it is sent; some streams break off."""

    name, routed, patience = "http://a", False, 5.0

    def __init__(self, outcome: Outcome, breaks: list[int]) -> None:
        self.outcome, self.breaks = outcome, breaks  # rounds that a stream tells before it breaks
        self.asked: list[list[int]] = []
        self.aborted: list[str] = []

    async def info(self) -> dict[str, Any]:
        return {"model_path": "right", "skip_tokenizer_init": True}

    async def stream(self, payload: dict[str, Any]) -> tuple[Any, AsyncGenerator[Any]]:
        params = payload["sampling_params"]
        last = params["custom_params"][protocol.KEY][protocol.PROMPT_END]
        self.asked.append([*payload["input_ids"], last])
        there = self.asked[-1][2:]  # what stands there of the output, or something else
        behind = len(there) if there == self.outcome.tokens[: len(there)] else 0
        events = self._events(last, behind, self.breaks.pop(0) if self.breaks else -1)
        return await anext(events), events

    async def _events(self, last: int, behind: int, left: int) -> AsyncGenerator[Any]:
        output, entries, start = [last], [], 0
        for done in self.outcome.rounds:
            if start >= behind:
                if not left:
                    raise EOFError("closed")
                left -= 1
                entries.append(rounds.whole(done, start - behind))
                output += done.tokens
                finish = {"type": "length"} if done is self.outcome.rounds[-1] else None
                meta = {"prompt_tokens": 1, protocol.ROUNDS: [*entries], "finish_reason": finish}
                yield {"output_ids": [*output], "meta_info": meta}
            start += len(done.tokens)

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def close(self) -> None: ...


def telling(breaks: list[int]) -> tuple[SglangEngine, Teller, Outcome]:
    outcome = in_the_loop(TOYS[1], LogProb(threshold=-2.0))
    place: Any = Teller(outcome, breaks)
    right = identity.Expected("right", (), 99, 999, 1, 1, ())
    return SglangEngine([place], right, frozenset(), "target"), place, outcome


def next_rounds(engine: SglangEngine, context: Context) -> Answer:
    left = Generate(LIMIT - len(context.output), inside=STEPS, piecewise=True)
    query = Query("target", context, GREEDY, random.Random(0), generate=left, purpose="write")
    return engine.submit(query).result(20)


@pytest.mark.parametrize("breaks", [[], [2], [1, 3], [2, 1, 1]])
def test_a_stream_that_breaks_off_is_gone_on_with_behind_what_was_told(breaks: list[int]) -> None:
    engine, place, outcome = telling(list(breaks))
    context, found, finish = Context(1, [3, 4]), list[Round](), ""
    while finish != "limit":
        answer = next_rounds(engine, context)
        context.extend(answer.tokens)
        found += answer.rounds
        finish = answer.finish
    assert context.output == outcome.tokens
    assert [done.tokens for done in found] == [done.tokens for done in outcome.rounds]
    assert len(place.asked) == 1 + len(breaks) and place.asked[0] == [3, 4]
    ends = [sum(breaks[: n + 1]) for n in range(len(breaks))]
    for asked, end in zip(place.asked[1:], ends, strict=True):
        before = [token for done in outcome.rounds[:end] for token in done.tokens]
        assert asked == [3, 4, *before]
    engine.close()
    assert not place.aborted


def test_a_stream_that_nobody_reads_on_is_given_up() -> None:
    """The problem is forgotten, or its text goes on in another way, or the engine closes."""
    engine, place, outcome = telling([])
    first, second = Context(1, [3, 4]), Context(2, [3, 4])
    for context in (first, second):
        assert next_rounds(engine, context).tokens == outcome.rounds[0].tokens
    engine.forget(first)
    second.extend([5])  # something else than was told
    next_rounds(engine, second)
    assert len(place.asked) == 3 and place.asked[2] == [3, 4, 5]
    assert len(place.aborted) == 2
    engine.close()
    assert len(place.aborted) == 3


# ---- when -----------------------------------------------------------------------------------------


def config(*options: str) -> RunConfig:
    return configuration(*URL, "draft=tiny", *(options or ("accept=logprob",)))


def test_a_run_that_fits_is_solved_inside() -> None:
    assert why_not(config(), THERE, {}) == ""
    made = config("accept=logprob", "draft_length=2", "max_repeats=3", "step_cap=20")
    assert asked_of(made, made.accept, THERE) == {
        "accept": "logprob",
        "threshold": -4.0,
        "draft_length": 2,
        "nested_length": 5,
        "step_cap": 20,
        "max_repeats": 3,
    }
    asked = requests.inside([1, 2], GREEDY, 5, frozenset(), asked_of(made, made.accept, THERE), 1)
    own = asked["sampling_params"]["custom_params"]
    served = Verification(Options()).of(own, GREEDY)
    rule = LogProb(threshold=-4.0)
    assert served == Steps(rule=rule, draft_length=2, step_cap=20, nested_length=5, max_repeats=3)


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        (("accept=logprob", "ahead=true"), {}, "ahead=true"),
        (("accept=logprob", "answer_by=target"), {}, "answer_by=target"),
        (("accept=random",), {}, "no rule accept=random"),
        (("accept=semantic_plus",), {"rules": ["logprob"]}, "(it has logprob)"),
        (("accept=semantic_plus", "accept.features=paper"), {}, "accept.features"),
        (("accept=logprob", "split=sentence"), {}, "splits steps by paragraph, not sentence"),
        (("accept=logprob",), {"draft": "owner/other"}, "drafts with owner/other"),
        (("accept=logprob", "split=token"), {}, "split=token"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(
    options: tuple[str, ...], changes: dict[str, Any], why: str
) -> None:
    found = why_not(config(*options), {**THERE, **changes}, {})
    assert why in found and "\n" not in found


def test_another_probe_is_noticed() -> None:
    made = config("accept=semantic_plus")
    source = ProbeSource("embedded/probe-tiny-target-plus")
    assert why_not(made, THERE, {"target": source}) == ""
    other = {**THERE, "probes": {"target": "0123456789abcdef"}}
    assert "loaded another target probe" in why_not(made, other, {"target": source})
    named = config("accept=semantic_plus", "accept.target_probe=embedded/probe-tiny-target-plus")
    assert "loaded another target probe" in why_not(named, THERE, {"target": source})


def test_without_such_a_server_it_is_the_loop_outside() -> None:
    assert "no draft model" in why_not(config(), None, {})
    assert identity.inside({}) is None and identity.inside({"internal_states": [{}]}) is None
    state = {"semspec": THERE}
    assert identity.inside({"internal_states": [state, state]}) == THERE
    other = {"semspec": {**THERE, "width": 8}}
    assert identity.inside({"internal_states": [state, other]}) is None
    for strange in ("x", [1], [None], {"a": 1}):
        assert identity.inside({"internal_states": strange}) is None


def test_lossless_tokens_go_to_a_server_that_drafts() -> None:
    tokens = ("accept=lossless", "split=token")
    made = config(*tokens)
    assert why_not(made, THERE, {}) == ""
    assert asked_of(made, made.accept, THERE) == {"accept": "lossless"}
    assert described(made, THERE).startswith("inside: the server drafts tokens with ")
    assert "no draft model" in why_not(made, None, {})
    assert "drafts with" in why_not(
        config(*tokens, "draft.model.path=embedded/tiny-target"), THERE, {}
    )
    for refused in (
        ("engine=sglang", "engine.inside=false"),
        (*URL, "engine.inside=false"),
        (*URL, "draft=suffix"),
        (*URL, "accept=lossless", "split=paragraph"),
        (*URL, "accept=typical"),
    ):
        with pytest.raises(UserError, match="needs probs, which engine=sglang cannot return"):
            configuration("draft=tiny", *tokens, *refused)
    own = configuration("draft=tiny", *tokens, "engine=sglang")  # it starts one that drafts
    assert not own.engine.connects
    alone = configuration(*URL, "draft=none", "accept=lossless")  # no rule is asked
    assert alone.draft.plain


def test_a_server_of_its_own_is_not_started_for_what_cannot_be_done_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sglang, "check_machine", lambda *_: None)  # no SGLang is installed here
    tokens = ("draft=tiny", "accept=lossless", "split=token", "answer_by=target")
    config = configuration(*tokens, "engine=sglang")
    with pytest.raises(UserError, match="only a server that drafts") as refused:
        Loaded(config)
    assert "\n" not in str(refused.value)


def test_the_option_is_checked() -> None:
    with pytest.raises(UserError, match="auto, true or false"):
        configuration(*URL, "engine.inside=maybe")
    with pytest.raises(UserError, match="target_url"):
        configuration("engine=sglang", "engine.inside=true", "accept=logprob")
    inside = configuration(
        *URL, "engine.inside=true", "accept=logprob", "salvage=true", "nested=lm"
    )
    assert inside.engine.inside is True
    with pytest.raises(UserError, match="salvage=true needs probs"):
        configuration(*URL, "accept=logprob", "salvage=true")


# ---- rules that declare themselves ------------------------------------------------------------------


@pytest.fixture
def own_rules() -> Iterator[tuple[type[Any], type[Any]]]:
    """A rule for steps and one for tokens that no module of the plugin has heard of."""

    @register("accept", "test_short")
    @dataclass(frozen=True, kw_only=True)
    class Short(RuleBase):
        """Accepts steps of few tokens that are among the target's likeliest."""

        most: int = 3
        needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
        in_server: ClassVar[InServer | None] = InServer({"most": int})

        def open(self, kit: Kit) -> ShortSession:
            return ShortSession(kit, self.most)

    @register("accept", "test_even")
    @dataclass(frozen=True, kw_only=True)
    class Even(TokenRule):
        """Keeps tokens with even ids."""

        offset: int = 0
        in_server: ClassVar[InServer | None] = InServer({"offset": int})

        def open(self, kit: Kit) -> LosslessSession:
            raise AssertionError

        def keeps(self, seen: Verified) -> Tensor:
            return (seen.flat + self.offset) % 2 == 0

    for known in (protocol.rule_kinds, protocol.options, rules.known_rules):
        known.cache_clear()
    yield Short, Even
    for name in ("test_short", "test_even"):
        del registry._PLUGINS["accept"][name]
    for known in (protocol.rule_kinds, protocol.options, rules.known_rules):
        known.cache_clear()


TOP = Read(What.TOP_K, k=4)


class ShortSession(StepSession):
    def __init__(self, kit: Kit, most: int) -> None:
        super().__init__(kit)
        self.most = most

    def reads(self, draft: Draft, spans: Any) -> tuple[Read, ...]:
        return (TOP,)

    def weigh(self, context: Context, draft: Draft, spans: Any, answer: Answer) -> Judgement:
        ids = answer[TOP][0].tolist()

        def accept(unit: int) -> bool:
            start, end = spans[unit]
            likely = all(draft.tokens[i] in ids[i] for i in range(start, end))
            return bool(likely and end - start <= self.most)

        return Judgement(accept)


def test_a_new_rule_for_steps_works_inside_by_its_declaration(own_rules: Any) -> None:
    made = Verification(Options(accept="test_short", most=2))
    found = [
        made.of(None, GREEDY),
        made.of({"semspec": {"most": 5, "step_cap": CAP}}, GREEDY),
        made.of({"semspec": {"accept": "test_short", "most": 99}}, GREEDY),
    ]
    with pytest.raises(
        UserError, match=r"has no option threshold: its options are draft_length.* most"
    ):
        made.of({"semspec": {"accept": "test_short", "threshold": -1}}, GREEDY)
    differ = set()
    for toy in TOYS:
        for asked in found:
            assert isinstance(asked, Steps)
            asked = replace(asked, step_cap=CAP, draft_length=2, nested_length=2)
            drafts, target = drafts_of(toy, 1 + 2 * CAP), toy.models()["target"]
            (output,) = run(drafts, target, [Asked("r", [0, 1], LIMIT, asked, GREEDY)])
            assert output == in_the_loop(toy, asked.rule).tokens
            differ.add((toy.seed, tuple(output)))
    assert len(differ) > len(TOYS), "the rule decides nothing"


def test_a_new_rule_for_tokens_works_inside_by_its_declaration(own_rules: Any) -> None:
    made = Verification(Options())
    rule = made.of({"semspec": {"accept": "test_even", "offset": 1}}, GREEDY)
    assert rule is not None and not isinstance(rule, Steps)
    seen = rules.Judged(
        torch.zeros(4, 8), torch.tensor([[1, 2, 3, 5]]), torch.tensor([[-1, 0, 1, 2]]), GREEDY
    )
    assert rules.loosely(rule, seen).tolist() == [[False, False, True, True]]
    with pytest.raises(UserError, match="has no option threshold: its options are offset"):
        made.of({"semspec": {"accept": "test_even", "threshold": -1}}, GREEDY)


def test_a_rule_that_declares_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"this server has only arc, .*logprob.*, off"):
        Verification(Options()).of({"semspec": {"accept": "judge"}}, GREEDY)


def test_every_declared_option_is_an_option_of_its_rule() -> None:
    for name, cls in rules.known_rules().items():
        own = {f.name for f in registry.plugin("accept", name).cls.__dataclass_fields__.values()}
        declared = cls.in_server
        assert {*declared.asked, *declared.server, *declared.told} <= own, name


def test_repeats_are_counted_as_in_the_loop() -> None:
    """A drafted step that stands in the text often enough is rejected, inside as outside."""
    rule, differ = LogProb(threshold=-50.0), 0
    for toy in TOYS:
        target = toy.models()["target"]
        for most in (0, 1):
            asked = Steps(
                rule=rule, draft_length=2, step_cap=CAP, nested_length=2, max_repeats=most
            )
            drafts = drafts_of(toy, 1 + 2 * CAP)
            (output,) = run(drafts, target, [Asked("r", [0, 1], LIMIT, asked, GREEDY)])
            expected = in_the_loop(toy, rule, most)
            assert output == expected.tokens
            differ += any("repeats" in done.note for done in expected.rounds)
    assert differ


# ---- load -----------------------------------------------------------------------------------------


def test_lengths_follow_the_batch() -> None:
    table = checked([[4, 8], [16, 3], [64, 0]])
    load = Load(table)
    for requests_, tokens in [(1, 5), (4, 5), (5, 3), (16, 3), (17, 0), (64, 0), (65, 0)]:
        load.requests = requests_
        assert load.tokens(5) == tokens
        assert Lightly(5, 1, load=load).units() == max(1, tokens)
    assert Load().tokens(5) == 5 == Lightly(5, 1).units()


@pytest.mark.parametrize(
    "wrong",
    [[1], [[1]], [[0, 3]], [[4, 3], [4, 2]], [[4, -1]], [[4, 2], [8, 3]], [[4, True]], ["ab"]],
)
def test_a_table_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="by_load") as refused:
        ModelOptions(by_load=tuple(wrong))
    assert "\n" not in str(refused.value)


def test_a_large_batch_drafts_no_tokens_and_its_texts_stay() -> None:
    """Three requests whose steps are judged, alone and under a table that leaves them one nested token."""
    toy, rule = TOYS[1], LogProb(threshold=-2.0)
    asked = Steps(rule=rule, draft_length=2, step_cap=CAP, nested_length=4)
    outputs, fed = [], []
    for table in ([], [[2, 4], [9, 1]]):
        drafts, target = drafts_of(toy, 1 + 2 * CAP), toy.models()["target"]
        drafts.load.table = checked(table)
        given = [Asked(f"r{i}", [0, 1 + i], LIMIT, asked, GREEDY) for i in range(3)]
        longest: list[int] = []

        def seen(
            one: Asked, gained: list[int], rows: Tensor, longest: list[int] = longest
        ) -> list[int]:
            longest.append(len(gained))
            return gained

        outputs.append(run(drafts, target, given, seen))
        fed.append(len(longest))
    assert outputs[0] == outputs[1]
    assert fed[0] < fed[1], "the table has no effect"
    drafts = drafts_of(toy, 1 + 2 * CAP)
    drafts.load.table = checked([[1, 4]])
    plain = [Asked(f"r{i}", [0, 1], LIMIT, None, GREEDY) for i in range(2)]
    for together, count in ((plain[:1], 2), (plain, 0)):
        drafts.meet([(one.rid, one, one.prompt, []) for one in together])
        drafts.batch_get(
            [o.rid for o in together], [o.prompt for o in together], [2] * len(together)
        )
        assert all(own - 1 == count for own in drafts.counts)
        assert drafts.nothing_drafted == (count == 0)  # then one row is read of each
