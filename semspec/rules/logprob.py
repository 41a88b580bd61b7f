"""A free score: the lowest log-probability that the target gives to a token of the step.

It comes from the pass that verifies anyway. An error sits in one or two tokens, so the lowest one
says more than a mean does (methods.md 1.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, What

LOGPROBS = Read(What.LOGPROBS)


@register("accept", "logprob")
@dataclass(frozen=True, kw_only=True)
class LogProb(RuleBase):
    """Accepts a step whose least likely token is likely enough under the target."""

    threshold: float = -4.0  # natural logarithm, at temperature 1; 0 rejects nearly everything

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})

    def __post_init__(self) -> None:
        if not self.threshold <= 0:  # not a number is refused, too
            raise UserError(
                f"accept.threshold={self.threshold} is above 0, the largest log-probability there"
                " is: give a negative number, such as -4"
            )

    def open(self, kit: Kit) -> LogProbSession:
        return LogProbSession(kit, self.threshold)


class LogProbSession(StepSession):
    def __init__(self, kit: Kit, threshold: float) -> None:
        super().__init__(kit)
        self.threshold = threshold

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        return (LOGPROBS,)

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        logprobs = answer[LOGPROBS].tolist()
        lowest = [min(logprobs[start:end]) for start, end in spans]
        return Judgement(lambda unit: lowest[unit] >= self.threshold, lowest)
