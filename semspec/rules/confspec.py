"""ConfSpec (Liu and He 2026, arXiv:2602.18447): the draft model checks its own step first.

Checking a step is easier than writing it, so a small model that is sure of its verdict is believed, and the target is
asked only where it is not. A step that the target does not check costs it only the prefill of the step's tokens, in the
next pass that it makes anyway.

From the abstract: the cascade, and that both verdicts come from the pair itself. *Ours*, because we did not have the
paper's text: both models are asked SpecReason's question in our wording (``rules.judge``); the draft's confidence is its
expected digit divided by 9; where the draft is sure of an *error*, the target is still asked; and the thresholds.

A judge needs models that can judge. The embedded pair has never seen such a turn: the rule runs with it, but its scores
mean nothing. ``accept=cascade`` is the same cascade with signals that need no question.
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
    """Accepts steps the draft model is sure of; the target rates the others (ConfSpec)."""

    sure: float = 0.9  # least expected digit / 9 of the draft to be believed; above 1: never
    threshold: float = 7.0  # the target's score, 0 to 9, from which a step stays
    score: str = "digit"  # of the target: its likeliest digit; average: the expectation over ten

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    reserve: ClassVar[int] = Judge.reserve
    salvages: ClassVar[bool] = False  # the target reads a step only to rate it

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
    passes: ClassVar[bool] = False  # the question's own pass reads the step

    def __init__(self, kit: Kit, rule: ConfSpec) -> None:
        super().__init__(kit)
        self.rule = rule
        self.tail, self.digits = ask_for_a_digit(kit)

    def ponder(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Plan[Judgement]:
        """Ask about one unit after another, up to the first that is rejected."""
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
        note = f"the target rated {asked} of {len(confidences)} steps" if asked else ""
        return Judgement(lambda unit: unit < kept, confidences, note)

    def _rated(
        self, model: Role, context: Context, shown: Sequence[int], score: str
    ) -> Plan[float]:
        found = yield from answer_of(self.kit, model, context, shown, self.tail)
        return read_score(*found, self.digits, score)
