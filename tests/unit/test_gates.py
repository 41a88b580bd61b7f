"""Rules that stop the draft model while it writes: GlimpRouter at a step's first token, R-Stitch at any token."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from semspec.decoding.entropy import entropies
from semspec.decoding.pace import Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import ToyEngine
from semspec.errors import UserError
from semspec.loop import Speculation, speculate
from semspec.rules.glimprouter import FIRST, GlimpRouter
from semspec.rules.r_stitch import RStitch
from semspec.types import Context, Draft, Outcome, Read, Room, Sampling, What
from tests.support.law import toy_kit

PROMPT = (0, 2)  # " It" and the end of a paragraph
SURE = 12.0


def engine(**rows: tuple[float, ...]) -> ToyEngine:
    """A model of four tokens (" It", " is", an end of a paragraph, ".") that writes " is" over and over.

    ``_ab``: the probabilities after the tokens a and b.
    """
    logits = torch.zeros(4, 4, 4)
    logits[:, :, 1] = 50
    for name, row in rows.items():
        logits[int(name[1]), int(name[2])] = torch.tensor(row).clamp_min(1e-30).log()
    return ToyEngine(logits)


def solved(rule: Any, target: ToyEngine, draft: ToyEngine, budget: int, **options: Any) -> Outcome:
    sampling = options.pop("sampling", Sampling(0.0))
    length = options.pop("draft_length", 1)
    kit = toy_kit(rule, target, sampling, options.pop("seed", 0), **options)
    context = Context(1, PROMPT)
    drafting = LanguageModel().open(replace(kit, rng=random.Random(f"{kit.rng.random()}")))
    pace = Steady(length, 4)
    problem = Speculation(context, kit, budget, drafting, rule.open(kit), pace)
    (done,) = Driver({"target": target, "draft": draft}).run([(context, speculate(problem))])
    assert isinstance(done.value, Outcome)
    return done.value


# ---- the arithmetic ----------------------------------------------------------------------------------


def test_entropies_of_a_row_by_hand() -> None:
    row = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log()
    by_hand = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)  # nats
    assert entropies(Read(What.LOGITS), row) == pytest.approx([by_hand / math.log(4)])
    # of the two likeliest alone: 2/3 and 1/3
    best = row.topk(2, -1)
    among = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert entropies(Read(What.TOP_K, k=2), (best.indices, best.values)) == pytest.approx([among])
    uniform = torch.zeros(3, 7)
    assert entropies(Read(What.LOGITS), uniform) == pytest.approx([1.0] * 3)


def test_entropies_are_those_of_a_slow_sum() -> None:
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(20, 50, generator=rng) * 4
    slow = []
    for row in rows.tolist():
        weights = [math.exp(x) for x in row]
        shares = [w / sum(weights) for w in weights]
        slow.append(-sum(p * math.log(p) for p in shares) / math.log(50))
    assert entropies(Read(What.LOGITS), rows) == pytest.approx(slow, rel=1e-6)
    best = rows.log_softmax(-1).topk(20, -1)
    for got, logprobs in zip(
        entropies(FIRST, (best.indices, best.values)), best.values, strict=True
    ):
        weights = [math.exp(x) for x in logprobs.tolist()]
        shares = [w / sum(weights) for w in weights]
        assert got == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-6)


# ---- GlimpRouter --------------------------------------------------------------------------------------


def test_a_step_goes_to_the_target_where_its_first_token_is_unsure() -> None:
    """The draft writes " It is" and the end; behind an end that follows " is" it hesitates."""
    draft = engine(
        _02=(1, 0, 0, 0), _20=(0, 1, 0, 0), _01=(0, 0, 1, 0), _12=(0.25, 0.25, 0.25, 0.25)
    )
    target = engine(_12=(0, 0, 0, 1), _23=(0, 0, 1, 0), _32=(1, 0, 0, 0))
    done = solved(GlimpRouter(threshold=1.0), target, draft, 5, split="paragraph")
    first, second = done.rounds
    assert first.kept == [0, 1, 2] and not first.handed_over
    assert first.scores == [pytest.approx(0, abs=1e-6)]
    assert "target" not in first.passes and first.passes["draft"] == 3
    # ln 4 = 1.39 is above 1: one token was looked at, none drafted, and the target writes the step
    assert second.drafted == [] and second.handed == [3, 2] and second.handed_ends == [2]
    assert second.note == "the first token's entropy is 1.39"
    assert second.passes == {"draft": 1, "target": 2}
    assert done.tokens == [0, 1, 2, 3, 2]
    lenient = solved(GlimpRouter(threshold=1.4), target, draft, 4, split="paragraph")
    assert all(not r.handed for r in lenient.rounds)
    assert all("target" not in r.passes for r in lenient.rounds)


def test_an_open_gate_leaves_the_draft_as_it_is() -> None:
    """Token by token or in one go: the same draft, with the same numbers."""
    toy = torch.Generator().manual_seed(1)
    model = ToyEngine(1.5 * torch.randn(4, 4, 4, generator=toy))
    rule = GlimpRouter(threshold=100)
    for seed in range(20):
        drafts = []
        for gate in (None, rule.gate(), replace(rule.gate(), each="token")):
            kit = replace(
                toy_kit(None, model, Sampling(1.0), seed, split="paragraph", step_cap=6), gate=gate
            )
            context = Context(1, PROMPT)
            plan = LanguageModel().open(kit).draft(context, Room(11, 2, 6))
            (done,) = Driver({"draft": model}).run([(context, plan)])
            draft = done.value
            assert isinstance(draft, Draft) and not draft.halted
            drafts.append((draft.tokens, draft.ends))
        assert drafts[0] == drafts[1] == drafts[2]


def test_what_no_gate_has_seen_is_left_to_the_target() -> None:
    words = toy_kit(GlimpRouter(), engine(), Sampling(), 0, split="paragraph")
    plan = GlimpRouter().open(words).judge(Context(1, PROMPT), Draft([0, 2], [2]))
    with pytest.raises(StopIteration) as stopped:
        next(plan)
    verdict = stopped.value.value
    assert verdict.keep == 0 and verdict.handover is not None


def test_a_threshold_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(UserError, match="draft=none"):
        GlimpRouter(threshold=0)


# ---- R-Stitch -----------------------------------------------------------------------------------------


def test_the_pen_changes_hands_at_unsure_tokens_in_both_directions() -> None:
    """Worked out by hand: rows are sure (entropy 0), or uniform over two of four (ln 2 / ln 4 = 0.5)."""
    two = (0.5, 0.5, 0, 0)
    # the draft: 0 after the prompt, then unsure
    draft = engine(_02=(1, 0, 0, 0), _20=two, _11=(0, 0, 0, 1), _13=two)
    # the target, from " It" on: unsure of a token (the first of two), and sure of the next
    target = engine(_20=two, _00=(0, 1, 0, 0), _01=(0, 1, 0, 0), _13=(1, 0, 0, 0), _30=(0, 1, 0, 0))
    rule = RStitch(threshold=0.4)
    done = solved(rule, target, draft, 6, split="token", draft_length=4)
    first, second = done.rounds[:2]
    # the draft is sure of 0, and its second token is thrown away; the target is unsure of 0 and sure of 1
    assert (first.kept, first.written) == ([0], [0, 1])
    assert first.passes == {"draft": 2, "target": 2}
    assert (
        first.scores == [pytest.approx(0, abs=1e-6)] and first.note == "the target writes 2 tokens"
    )
    # after " It is" the draft goes on (" is" over and over, "." behind two), and shuts behind "."
    assert second.kept[:2] == [1, 3] and second.written[0] == 0
    lenient = solved(RStitch(threshold=0.6), target, draft, 3, split="token", draft_length=3)
    assert all("target" not in r.passes for r in lenient.rounds)


def test_the_target_gives_the_pen_back_after_so_many_tokens() -> None:
    flat = ToyEngine(torch.zeros(4, 4, 4))
    rule = RStitch(threshold=0.5, longest=3)
    done = solved(rule, flat, flat, 7, split="token", sampling=Sampling(1.0))
    assert [len(r.written) for r in done.rounds] == [3, 3, 1]
    assert [r.passes for r in done.rounds] == [{"draft": 1, "target": 3}] * 3


def test_what_is_stitched_together_follows_the_law_of_whoever_is_sure() -> None:
    """Against a slow walk over all texts: each token is the draft's or the target's, by the entropies."""
    generator = torch.Generator().manual_seed(4)
    target, draft = (ToyEngine(2 * torch.randn(4, 4, 4, generator=generator)) for _ in "td")
    rule, length = RStitch(threshold=0.6, longest=2), 3
    law: Counter[tuple[int, ...]] = Counter()

    def walk(text: list[int], chance: float, held: int) -> None:
        """``held``: tokens that the target has written in a row, 0 while the draft has the pen."""
        if len(text) == len(PROMPT) + length:
            law[tuple(text[len(PROMPT) :])] += chance
            return
        at = text[-2], text[-1]
        unsure = [slow_entropy(model.logits[at].tolist()) >= 0.6 for model in (draft, target)]
        by_target = held > 0 or unsure[0]
        for token, p in enumerate((target if by_target else draft).logits[at].softmax(-1).tolist()):
            goes_on = by_target and unsure[1] and held + 1 < 2
            walk([*text, token], chance * p, held + 1 if goes_on else 0)

    walk(list(PROMPT), 1.0, 0)
    draws = 4000
    found = Counter(
        tuple(
            solved(
                rule, target, draft, length, split="token", sampling=Sampling(1.0), seed=seed
            ).tokens
        )
        for seed in range(draws)
    )
    kept = [text for text, p in law.items() if p * draws >= 5]
    rest = 1 - sum(law[text] for text in kept)
    seen = [found[text] for text in kept]
    expected = [law[text] * draws for text in kept]
    if rest > 1e-9:
        seen.append(draws - sum(seen))
        expected.append(rest * draws)
    assert chisquare(seen, expected).pvalue > 1e-4


def slow_entropy(logits: list[float]) -> float:
    weights = [math.exp(x) for x in logits]
    shares = [w / sum(weights) for w in weights]
    return -sum(p * math.log(p) for p in shares) / math.log(len(shares))


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": 1.1}, {"longest": 0}])
def test_wrong_options_of_r_stitch_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        RStitch(**options)
