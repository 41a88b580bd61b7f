"""Lossless speculation has exactly the target's law: shown, not assumed.

Each test compares 4,000 outputs of three tokens, in the deep run 100,000 (10,000 in its further cases), with the exact law of
the toy target. Rules with the faults of public code must fail the same test, and so must one that is wrong by very little:
it keeps one in twenty of the tokens that it should reject. 7,000 outputs are enough to detect the former, 12,000 the latter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from semspec.drafters._base import DraftSessionBase
from semspec.drafters.lm import LanguageModel
from semspec.engines.toy import Toy
from semspec.protocols import Kit, Plan
from semspec.rules._tokens import Scored
from semspec.rules.lossless import Lossless, LosslessSession
from semspec.types import (
    Context,
    Draft,
    Query,
    Read,
    Room,
    Sampling,
    Verdict,
    What,
)
from tests.support.deep import samples
from tests.support.law import handover_plan, p_value, plain_plan, speculative_plan

pytestmark = pytest.mark.deep(quick=True)
DEEP_ALONE = pytest.mark.deep  # not in both runs
SAMPLES = samples(quick=4_000, deep=100_000)
VARIANTS = 10_000  # outputs of a case that the deep run alone has, beside one of 100,000
FEWER = samples(quick=7_000, deep=20_000)  # outputs that wrong rules are found out with
SUBTLE = samples(quick=12_000, deep=20_000)  # likewise, of one that is wrong by very little
WHOLE_FOR_SENTENCES = {"paragraph": min(SAMPLES, VARIANTS), "sentence": SAMPLES}
SURE = 1e-4  # a correct rule falls below it once in 10,000 runs; the seeds are fixed, so: never
TOY = Toy(vocabulary=4, seed=3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True)
SAMPLINGS = {
    "T=1": Sampling(1.0),
    "T=0.6": Sampling(0.6),
    "top-k": Sampling(1.0, top_k=3),
    "top-p": Sampling(0.8, top_p=0.9),
    "min-p": Sampling(1.2, min_p=0.2),
}


@dataclass(frozen=True, kw_only=True)
class Deterministic:
    """Proposes tokens that were not sampled from anything, as retrieval does."""

    plain: ClassVar[bool] = False
    ahead: ClassVar[bool] = False
    rows: bool = False  # claims, wrongly, that they were sampled from the draft model's rows

    def open(self, kit: Kit) -> DeterministicSession:
        return DeterministicSession(kit, self.rows)


class DeterministicSession(DraftSessionBase):
    def __init__(self, kit: Kit, rows: bool) -> None:
        self.kit, self.rows = kit, rows

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        tokens: list[int] = []
        for _ in range(room.limit):
            query = Query(
                "draft",
                context,
                self.kit.sampling,
                self.kit.rng,
                tokens=tokens,
                reads=(Read(What.PROBS),),
            )
            probs = (yield query)[Read(What.PROBS)]
            tokens.append(int(probs[-1].argmax()))
        ends = list(range(1, len(tokens) + 1))
        return Draft(tokens, ends, probs=probs if self.rows else None)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_decoding_has_the_targets_law(sampling: Sampling) -> None:
    count = SAMPLES if sampling == SAMPLINGS["T=1"] else min(SAMPLES, VARIANTS)
    assert p_value(TOY, plain_plan, None, sampling, samples=count) > SURE


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(
    "draft_length", [pytest.param(1, marks=DEEP_ALONE), 2, pytest.param(5, marks=DEEP_ALONE)]
)
def test_sampled_chain_is_lossless(sampling: Sampling, draft_length: int) -> None:
    rule = Lossless()
    plan = speculative_plan(LanguageModel(), rule)
    whole = draft_length == 2 and sampling == SAMPLINGS["T=1"]
    count = SAMPLES if whole else min(SAMPLES, VARIANTS)
    assert p_value(TOY, plan, rule, sampling, samples=count, draft_length=draft_length) > SURE


@pytest.mark.parametrize("split", ["paragraph", "sentence"])
def test_chain_of_whole_steps_is_lossless(split: str) -> None:
    """Drafted by steps, cut by tokens; a sentence's end is revealed only by the token after it."""
    rule = Lossless()
    plan = speculative_plan(LanguageModel(), rule)
    options = {"samples": WHOLE_FOR_SENTENCES[split], "split": split, "draft_length": 2}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize("split", ["paragraph", "sentence"])
def test_handovers_of_one_unit_keep_the_targets_law(split: str) -> None:
    """Handovers of one unit each: nothing that was drawn is drawn again."""
    options = {"samples": WHOLE_FOR_SENTENCES[split], "split": split}
    assert p_value(TOY, handover_plan, None, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize("draft_length", [2, pytest.param(4, marks=DEEP_ALONE)])
def test_end_of_text_is_lossless(draft_length: int) -> None:
    rule = Lossless()
    plan = speculative_plan(LanguageModel(), rule)
    options = {"samples": min(SAMPLES, VARIANTS), "draft_length": draft_length}
    assert p_value(STOPPING, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), pytest.param(Sampling(0.6), marks=DEEP_ALONE)],
    ids=["T=1", "T=0.6"],
)
def test_unsampled_chain_is_lossless(sampling: Sampling) -> None:
    rule = Lossless()
    plan = speculative_plan(Deterministic(), rule)
    count = SAMPLES if sampling.temperature == 1 else VARIANTS
    assert p_value(TOY, plan, rule, sampling, samples=count) > SURE


def test_a_wrong_rule_is_detected() -> None:
    """p/q on drafts that were never sampled from q: the common bug fails the same test."""
    rule = Lossless()
    plan = speculative_plan(Deterministic(rows=True), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=FEWER) < 1e-12


@dataclass(frozen=True, kw_only=True)
class OffByOne(Lossless):
    """Judges every token by the row after it: another classic."""

    def open(self, kit: Kit) -> LosslessSession:
        return OffByOneSession(kit)


class OffByOneSession(LosslessSession):
    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        inner = super().judge(context, draft)
        query = next(inner)
        answer = yield query
        rows = answer.values[query.reads[0]]
        answer.values = {query.reads[0]: torch.cat([rows[1:], rows[:1]])}
        try:
            inner.send(answer)
        except StopIteration as stop:
            return stop.value
        raise AssertionError


def test_shifted_rows_are_detected() -> None:
    rule = OffByOne()
    plan = speculative_plan(LanguageModel(), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=FEWER) < 1e-12


@dataclass(frozen=True, kw_only=True)
class OneSided(Lossless):
    """Reads the target's rows without min-p, as a server does that does not know it."""

    def open(self, kit: Kit) -> LosslessSession:
        return OneSidedSession(kit)


class OneSidedSession(LosslessSession):
    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        inner = super().judge(context, draft)
        query = next(inner)
        query.sampling = replace(query.sampling, min_p=0.0)
        answer = yield query
        try:
            inner.send(answer)
        except StopIteration as stop:
            return stop.value
        raise AssertionError


def test_min_p_for_the_draft_alone_is_detected() -> None:
    rule = OneSided()
    plan = speculative_plan(LanguageModel(), rule)
    with pytest.raises(AssertionError, match="that the target never writes"):
        p_value(TOY, plan, rule, SAMPLINGS["min-p"], samples=FEWER)


@dataclass(frozen=True, kw_only=True)
class OtherRows(LanguageModel):
    """Draws with min-p and reports rows without it (or the other way round)."""

    def open(self, kit: Kit) -> Any:
        session = super().open(kit)
        draw = session.draft

        def draft(context: Context, room: Room) -> Plan[Draft]:
            found: Draft = yield from draw(context, room)
            rows = Read(What.PROBS)
            free = replace(kit.sampling, min_p=0.0)
            again = Query("draft", context, free, kit.rng, tokens=found.tokens, reads=(rows,))
            found.probs = (yield again)[rows][: len(found.tokens)]
            return found

        session.draft = draft  # type: ignore[method-assign]
        return session


def test_min_p_for_the_drawing_alone_is_detected() -> None:
    rule = Lossless()
    plan = speculative_plan(OtherRows(), rule)
    assert p_value(TOY, plan, rule, Sampling(1.2, min_p=0.4), samples=FEWER) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Lenient(Lossless):
    """Keeps one in twenty of the tokens that speculative sampling rejects."""

    def open(self, kit: Kit) -> LosslessSession:
        return LenientSession(kit)


class LenientSession(LosslessSession):
    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        return torch.tensor([self.kit.rng.random() < 0.05 for _ in scored.draft.tokens])


def test_one_wrong_token_in_twenty_is_detected() -> None:
    rule = Lenient()
    plan = speculative_plan(LanguageModel(), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=SUBTLE) < 1e-12


def test_the_worked_example_of_the_methods_emits_p() -> None:
    """Three deterministic siblings under p = [.35 .25 .20 .15 .05]."""
    from semspec.decoding.acceptance import residual

    p = torch.tensor([0.35, 0.25, 0.20, 0.15, 0.05])
    emitted, rest, row = torch.zeros(5), 1.0, p
    for sibling in (0, 1, 2):
        emitted[sibling] += rest * row[sibling]
        rest *= float(1 - row[sibling])
        row = residual(row, sibling, None)
    assert torch.allclose(emitted + rest * row, p, atol=1e-6)
