"""A free score: the lowest log-probability that the target gives to a token of the step.

It comes from the pass that verifies anyway. An error sits in one or two tokens, so the lowest one
says more than a mean does (methods.md 1.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._steps import left_to_right, unit_spans
from semspec.types import Context, Draft, Query, Read, Verdict, What

LOGPROBS = Read(What.LOGPROBS)


@register("accept", "logprob")
@dataclass(frozen=True, kw_only=True)
class LogProb:
    """Accepts a step whose least likely token is likely enough under the target."""

    threshold: float = -4.0  # natural logarithm, at temperature 1; 0 rejects nearly everything

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"
    splits: ClassVar[frozenset[str] | None] = None
    lossless: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.threshold <= 0:  # not a number is refused, too
            raise UserError(
                f"accept.threshold={self.threshold} is above 0, the largest log-probability there"
                " is: give a negative number, such as -4"
            )

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def open(self, kit: Kit) -> LogProbSession:
        return LogProbSession(kit, self.threshold)


class LogProbSession:
    def __init__(self, kit: Kit, threshold: float) -> None:
        self.kit, self.threshold = kit, threshold

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        kit = self.kit
        answer = yield Query(
            "target", context, kit.sampling, kit.rng, tokens=draft.tokens, reads=(LOGPROBS,)
        )
        logprobs = answer[LOGPROBS].tolist()
        lowest = [min(logprobs[start:end]) for start, end in unit_spans(draft)]
        return left_to_right(draft, lambda unit: lowest[unit] >= self.threshold, lowest)
