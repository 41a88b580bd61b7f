"""ConfSpec (Liu and He 2026, arXiv:2602.18447): the draft model checks its own step first.

To check a step is easier than to write it, so a small model that is sure of its verdict is believed, and only
where it is not the target is asked. A step that is not checked by the target costs the target nothing but the
prefill of its tokens, in the next pass that it makes anyway.

From the abstract: the cascade, and that both verdicts come from the pair itself. *Ours*, for want of the paper's text:
both models are asked SpecReason's question in our wording (``rules.judge``), the draft's confidence is the expectation
of its digit, divided by 9, and a draft that is sure of an *error* is not believed: the target is asked. The thresholds
are ours, too.

A judge needs models that can judge. The embedded pair has never seen such a turn: there the rule
runs, and its scores mean nothing. ``accept=cascade`` is the same cascade with signals that need no question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Setup
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._small import check_drafted
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.rules.judge import SCORES, Judge, answer_of, ask_for_a_digit, read_score
from semspec.types import Answer, Context, Draft, Role, What

BEST_SCORE = 9


@register("accept", "confspec")
@dataclass(frozen=True, kw_only=True)
class ConfSpec(RuleBase):
    """Accepts a step that the draft model is sure of; the target rates the others (ConfSpec)."""

    sure: float = (
        0.9  # the draft's expected score, divided by 9, from which it is believed; above 1: never
    )
    threshold: float = 7.0  # the target's score, 0 to 9, from which a step stays
    score: str = "digit"  # the target's: the likeliest digit; average: the expectation over all ten

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    reserve: ClassVar[int] = Judge.reserve
    salvages: ClassVar[bool] = False  # the target reads a step to rate it, not to write it

    def __post_init__(self) -> None:
        if not self.sure >= 0:
            raise UserError(
                f"accept.sure={self.sure}: give 0 to 1, or more to ask the target always"
            )
        if self.score not in SCORES:
            raise UserError(f"accept.score={self.score}: give {' or '.join(SCORES)}")
        if not 0 <= self.threshold <= BEST_SCORE:
            raise UserError(f"accept.threshold={self.threshold}: scores go from 0 to 9")

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(sure=0.5, threshold=3.0)

    def open(self, kit: Kit) -> ConfSpecSession:
        return ConfSpecSession(kit, self)


class ConfSpecSession(StepSession):
    passes: ClassVar[bool] = False  # whoever rates a step reads it

    def __init__(self, kit: Kit, rule: ConfSpec) -> None:
        super().__init__(kit)
        self.rule = rule
        self.tail, self.digits = ask_for_a_digit(kit)

    def ponder(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Plan[Judgement]:
        """Ask about one unit after the other, until the first that is rejected."""
        rule, confidences = self.rule, list[float]()
        kept, asked = 0, 0
        for _, end in spans:
            shown = draft.tokens[:end]
            expected = yield from self._rated("draft", context, shown, "average")
            confidences.append(expected / BEST_SCORE)
            if confidences[-1] < rule.sure:
                asked += 1
                rated = yield from self._rated("target", context, shown, rule.score)
                if rated < rule.threshold:
                    break
            kept += 1
        note = f"the target was asked about {asked} of {len(confidences)}" if asked else ""
        return Judgement(lambda unit: unit < kept, confidences, note)

    def _rated(
        self, model: Role, context: Context, shown: Sequence[int], score: str
    ) -> Plan[float]:
        found = yield from answer_of(self.kit, model, context, shown, self.tail)
        return read_score(*found, self.digits, score)
