"""Step level: drafted steps have the draft's law, and what the target writes has exactly the target's.

Compared by chi-square with the exact law of the loop, for outputs of three tokens and a rule that accepts or rejects by the
drafted content. In that case a wrong salvage shows: at p = 2e-78 with the number of samples that every test here draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from semspec.decoding.acceptance import lossless_chain
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.pace import Pace
from semspec.decoding.sampling import draw_next, uniforms
from semspec.drafters.lm import LanguageModel
from semspec.engines.toy import Toy
from semspec.protocols import Kit
from semspec.registry import plugin
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.rules.lookahead import LookaheadSession
from semspec.rules.lossless import Lossless
from semspec.types import Answer, Context, Draft, Handover, Read, Sampling, Verdict, What
from tests.support.costs import economy, table
from tests.support.deep import samples
from tests.support.law import PROMPT, Unit, p_value, piece, plain_plan, speculative_plan, step_law

SURE = 1e-4
SAMPLES = samples(quick=800, deep=2_500)
FEWER = samples(quick=3_000, deep=4_000)  # outputs that wrong rules are found out with
pytestmark = pytest.mark.deep(quick=True)
Accept = Callable[[Unit], bool]
TOY = Toy(vocabulary=4, seed=3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True)


def none(unit: Unit) -> bool:
    return False


def every(unit: Unit) -> bool:
    return True


def by_content(unit: Unit) -> bool:
    return unit[0] in (0, 2)


@dataclass(frozen=True, kw_only=True)
class Told(RuleBase):
    """Accepts the units that it was told to accept."""

    accepts: tuple[int, ...] = ()  # first tokens

    def evidence(self) -> tuple[Read, ...]:
        return (Read(What.PROBS),)

    def open(self, kit: Kit) -> StepSession:
        return ToldSession(kit, self.accepts)


class ToldSession(StepSession):
    def __init__(self, kit: Kit, accepts: tuple[int, ...]) -> None:
        super().__init__(kit)
        self.accepts = accepts

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        return Judgement(lambda unit: draft.tokens[spans[unit][0]] in self.accepts)


RULES = {none: Told(), every: Told(accepts=(0, 1, 2, 3)), by_content: Told(accepts=(0, 2))}


@pytest.mark.parametrize(
    ("accept", "split"),
    [
        (none, "paragraph"),
        (none, "sentence"),
        (every, "paragraph"),
        (
            every,
            "sentence",
        ),  # a token that reveals an end is kept: dropped, it would come too rarely
        (by_content, "token"),
        (by_content, "paragraph"),
    ],
)
def test_the_loop_has_the_law_computed_from_its_parts(accept: Accept, split: str) -> None:
    """Nothing switched on. All accepted: the draft's law; all rejected: the target's."""
    law = None
    if accept is every:
        law = TOY.models()["draft"].law(PROMPT, 3, Sampling(1.0))
    elif accept is by_content:
        law = step_law(TOY, accept, Sampling(1.0), split, 3)
    rule = RULES[accept]
    plan = speculative_plan(LanguageModel(), rule)
    options = {"split": split, "step_cap": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, Sampling(1.0), law=law, **options) > SURE  # type: ignore[arg-type]


@pytest.mark.parametrize("toy", [TOY, STOPPING], ids=["goes-on", "stops"])
@pytest.mark.parametrize("accept", [none, by_content])
@pytest.mark.parametrize("extra", ["salvage", "nested", "ahead", "all"])
def test_options_of_the_loop_leave_its_law(toy: Toy, accept: Accept, extra: str) -> None:
    rule = RULES[accept]
    plan = speculative_plan(
        LanguageModel(),
        rule,
        nested=LanguageModel() if extra in ("nested", "all") else None,
        ahead=extra in ("ahead", "all"),
    )
    sampling = Sampling(0.8)
    law = step_law(toy, accept, sampling, "paragraph", 3)
    salvage = extra in ("salvage", "all")
    options = {"split": "paragraph", "step_cap": 3, "salvage": salvage}
    assert p_value(toy, plan, rule, sampling, samples=SAMPLES, law=law, **options) > SURE  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", ["salvage", "nested", "all"])
def test_options_of_the_loop_leave_its_law_with_min_p(extra: str) -> None:
    """For draft and target alike: what either of them excludes never comes out."""
    rule, sampling = RULES[by_content], Sampling(1.2, min_p=0.2)
    nested = LanguageModel() if extra in ("nested", "all") else None
    plan = speculative_plan(LanguageModel(), rule, nested=nested, ahead=extra == "all")
    law = step_law(TOY, by_content, sampling, "paragraph", 3)
    assert (
        0
        < sum(p > 0 for p in law.values())
        < len(step_law(TOY, by_content, Sampling(1.2), "paragraph", 3))
    )
    options: dict[str, Any] = {"split": "paragraph", "step_cap": 3, "salvage": extra != "nested"}
    assert p_value(TOY, plan, rule, sampling, samples=SAMPLES, law=law, **options) > SURE


@pytest.mark.parametrize("extra", ["lossless", "salvage, nested", "everything kept"])
def test_adaptive_lengths_leave_the_targets_law(extra: str) -> None:
    """Whoever chooses the length by what came out before; a rule that keeps all is found out."""
    costs, lengths = table(passing=1.0, fed=0.1, units=1.0), Counter[int]()
    shared = economy(costs)

    class Told(AdaptiveSteps):
        def units(self) -> int:
            lengths[units := AdaptiveSteps.units(self)] += 1
            return units

    def made(longest: int, cap: int) -> Pace:
        by_token = extra == "lossless"
        return Told(economy=shared, longest=longest, cap=cap, by_token=by_token)

    rule: Any = {"lossless": Lossless(), "salvage, nested": RULES[none]}.get(extra, RULES[every])
    nested = LanguageModel() if extra == "salvage, nested" else None
    plan = speculative_plan(LanguageModel(), rule, nested=nested)
    options: dict[str, Any] = {"draft_length": 3, "step_cap": 3, "samples": FEWER // 2}
    options |= {"split": "paragraph", "salvage": extra == "salvage, nested"}
    p = p_value(TOY, plan, rule, Sampling(0.8), pace=made, **options)
    assert p < 1e-12 if extra == "everything kept" else p > SURE
    assert len(lengths) > 1, lengths


CLOSING = 3


@pytest.mark.parametrize("nested", [None, LanguageModel()], ids=["plain", "nested"])
def test_after_the_thinking_the_target_writes(nested: LanguageModel | None) -> None:
    """Everything drafted is kept, so that the draft's law is the text's up to the closing tag."""
    law: dict[Unit, float] = {}
    models = TOY.models()

    def go(output: Unit, probability: float) -> None:
        if len(output) == 3:
            law[output] = probability
            return
        writer = models["target" if CLOSING in output else "draft"]
        for token, p in writer.law((*PROMPT, *output), 1, Sampling(0.8)).items():
            go((*output, *token), probability * p)

    go((), 1.0)
    rule = RULES[every]
    options: dict[str, Any] = {"samples": 3_000, "law": law}  # fewer do not tell
    plan = speculative_plan(LanguageModel(), rule, nested=nested, closing=CLOSING)
    assert p_value(TOY, plan, rule, Sampling(0.8), **options) > SURE
    plan = speculative_plan(LanguageModel(), rule, nested=nested)
    assert p_value(TOY, plan, rule, Sampling(0.8), **options) < 1e-12


def test_salvage_of_single_tokens_has_the_expected_law() -> None:
    rule = RULES[by_content]
    plan = speculative_plan(LanguageModel(), rule)
    law = step_law(TOY, by_content, Sampling(1.0), "token", 3)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=SAMPLES, salvage=True, law=law) > SURE


@dataclass(frozen=True, kw_only=True)
class WrongSalvage(Told):
    """Salvages by min(1, p/q), as if a step rejected for its content were a sample of q."""

    def open(self, kit: Kit) -> StepSession:
        return WrongSalvageSession(kit, self.accepts)


class WrongSalvageSession(ToldSession):
    def salvage(self, verdict: Verdict, draft: Draft, span: Span, p: Tensor) -> None:
        kit, (start, end) = self.kit, span
        assert draft.probs is not None
        step = torch.tensor(draft.tokens[start:end])
        chances = uniforms(len(step), kit.sampling, kit.rng, p.device)
        kept, row = lossless_chain(p[start : end + 1], step, draft.probs[start:end], chances)
        verdict.write = step[:kept].tolist()
        if kept < len(step):
            verdict.write.append(draw_next(row, kit.sampling, kit.rng))
        verdict.handover = Handover(units=1, opened=len(verdict.write))


@pytest.mark.parametrize("split", ["token", "paragraph"])
def test_salvage_by_p_over_q_is_detected(split: str) -> None:
    rule = WrongSalvage(accepts=(0, 2))
    plan = speculative_plan(LanguageModel(), rule)
    law = step_law(TOY, by_content, Sampling(1.0), split, 3)
    p = p_value(
        TOY,
        plan,
        rule,
        Sampling(1.0),
        samples=FEWER,
        salvage=True,
        split=split,
        step_cap=3,
        law=law,
    )
    assert p < 1e-12


@pytest.mark.parametrize("concurrency", [8, 50])
def test_batches_leave_the_law(concurrency: int) -> None:
    rule = Lossless()
    for plan, judged in ((plain_plan, None), (speculative_plan(LanguageModel(), rule), rule)):
        p = p_value(TOY, plan, judged, Sampling(1.0), samples=SAMPLES, concurrency=concurrency)
        assert p > SURE


def test_the_random_rule_mixes_both_laws_by_its_rate() -> None:
    """One token, accepted with a fixed rate r: r q + (1 - r) p."""
    rule = plugin("accept", "random").cls(rate=0.3)
    models = TOY.models()
    q, p = (models[m].law(PROMPT, 1, Sampling(1.0)) for m in ("draft", "target"))
    law = {token: 0.3 * q[token] + 0.7 * p[token] for token in p}
    plan = speculative_plan(LanguageModel(), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=SAMPLES, length=1, law=law) > SURE


@dataclass(frozen=True, kw_only=True)
class NeverAlike(RuleBase):
    """Lookahead whose comparison says no (or yes by the first word), whatever the target wrote."""

    accepts: tuple[str, ...] = ()

    def open(self, kit: Kit) -> LookaheadSession:
        return LookaheadSession(kit, lambda said, a, b: a.startswith(self.accepts))


@pytest.mark.parametrize("toy", [TOY, STOPPING], ids=["goes-on", "stops"])
@pytest.mark.parametrize(("split", "ahead"), [("paragraph", True), ("sentence", False)])
def test_lookahead_writes_with_the_targets_law(toy: Toy, split: str, ahead: bool) -> None:
    """Also the token that only reveals the end of a sentence: written as it was drawn."""
    rule = NeverAlike()
    plan = speculative_plan(LanguageModel(), rule, ahead=ahead)
    options = {"split": split, "step_cap": 3, "samples": SAMPLES}
    assert p_value(toy, plan, rule, Sampling(0.8), **options) > SURE  # type: ignore[arg-type]


def test_lookahead_keeps_and_writes_whole_steps() -> None:
    """Compared by what was drafted alone: the law of any rule that accepts by content."""
    rule = NeverAlike(accepts=tuple(piece(t) for t in (0, 2)))
    plan = speculative_plan(LanguageModel(), rule)
    law = step_law(TOY, by_content, Sampling(1.0), "paragraph", 3)
    options = {"split": "paragraph", "step_cap": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, Sampling(1.0), law=law, **options) > SURE  # type: ignore[arg-type]


@pytest.mark.parametrize("toy", [TOY, STOPPING], ids=["goes-on", "stops"])
@pytest.mark.parametrize("split", ["paragraph", "sentence"])
def test_steps_kept_by_tokens_are_lossless(toy: Toy, split: str) -> None:
    rule = plugin("accept", "token").cls()
    plan = speculative_plan(LanguageModel(), rule)
    options = {"split": split, "step_cap": 3, "samples": SAMPLES}
    assert p_value(toy, plan, rule, Sampling(0.8), **options) > SURE  # type: ignore[arg-type]
