"""Ours: trust a cheap signal first, ask the target only where that is unsure, and keep one risk over both.

A draft stays unread where the draft model was sure of every step: the lowest log-probability of each step, which comes
with the draft, reaches ``sure``. Otherwise the target reads the whole draft, and the steps whose lowest log-probability
under the target reaches ``threshold`` stay (as with ``accept=logprob``).

With a calibration, both thresholds follow from the risk requested for all accepted steps together, read or not
(``calibration.cascade``). A step that the draft was sure of then stays even if the target has read it and finds it
unlikely, because the risk was certified that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.cascade import CertifiedCascade, certify_cascade
from semspec.errors import UserError
from semspec.protocols import Kit, Setup
from semspec.registry import register
from semspec.rules._risk import Certifiable
from semspec.rules._small import check_drafted
from semspec.rules._steps import Judgement, Span, StepSession, lowest_of
from semspec.types import LOGPROBS, Answer, Context, Draft, Read, What

SURE, THRESHOLD = -0.7, -4.0


@register("accept", "cascade")
@dataclass(frozen=True, kw_only=True)
class Cascade(Certifiable):
    """Accepts, without verifying, steps the draft is sure of; the target judges the others (ours)."""

    sure: float = SURE  # least log-probability of a token, under the draft, in a step kept unread
    threshold: float = THRESHOLD  # the same under the target, in a step that it reads
    calibration: str | None = None  # a folder or Hub repository: replaces both thresholds
    risk: float | None = None  # at most: P(an accepted step has a semantic probability < least)
    least: float = 0.05  # a step below this is one that the target would hardly say
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set
    allow_mismatch: bool = False  # go on where the guarantee does not hold

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})

    def __post_init__(self) -> None:
        for name in ("sure", "threshold"):
            value = getattr(self, name)
            if not value <= 0:
                raise UserError(
                    f"accept.{name}={value} is above 0, the largest log-probability there is: give a negative"
                    " number"
                )
        self.check_risk()
        if self.calibration is not None and (self.sure, self.threshold) != (SURE, THRESHOLD):
            raise UserError(
                "accept.calibration sets both thresholds: leave sure= and threshold= out"
            )

    certify: ClassVar[Callable[..., CertifiedCascade]] = staticmethod(certify_cascade)
    certified: ClassVar[CertifiedCascade | None] = None  # set by ``bind``, with a calibration

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    def evidence(self) -> tuple[Read, ...]:
        return (LOGPROBS,)

    def columns(self, given: RiskCalibration) -> tuple[list[Any], ...]:
        return given.cascade

    @property
    def levels(self) -> tuple[float, float]:
        """Return the thresholds in use, the draft's and the target's."""
        if (found := self.certified) is not None:
            return found.sure, found.threshold
        return self.sure, self.threshold

    def origin(self) -> str:
        sure, threshold = self.levels
        if self.certified is None:
            if self.calibration is not None:
                return f"thresholds certified by {self.calibration}"
            return f"thresholds {sure:g} (draft) and {threshold:g} (target), uncalibrated for this pair"
        return (
            f"thresholds {sure:.2f} (draft) and {threshold:.2f} (target), certified by {self.calibration}: with"
            f" confidence {self.confidence:g} at most {self.risk:g} of the accepted steps, verified or not, are ones that"
            " the target would hardly write"
        )

    def open(self, kit: Kit) -> CascadeSession:
        return CascadeSession(kit, *self.levels, certified=self.certified is not None)


class CascadeSession(StepSession):
    def __init__(self, kit: Kit, sure: float, threshold: float, certified: bool = False) -> None:
        super().__init__(kit)
        self.sure, self.threshold, self.certified = sure, threshold, certified

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        return (LOGPROBS,)

    def settled(self, draft: Draft, spans: Sequence[Span]) -> bool:
        return all(lowest >= self.sure for lowest in self._of_draft(draft, spans))

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        drafts = self._of_draft(draft, spans)
        if LOGPROBS not in answer.values:  # settled: the target made no pass
            return Judgement(lambda unit: True, drafts, "unread")
        lowest = lowest_of(answer[LOGPROBS], spans)
        trusted = self.sure if self.certified else float("inf")
        return Judgement(
            lambda unit: drafts[unit] >= trusted or lowest[unit] >= self.threshold, drafts
        )

    def _of_draft(self, draft: Draft, spans: Sequence[Span]) -> list[float]:
        if LOGPROBS not in draft.evidence:  # a copied draft: no model was sure of it
            return [float("-inf")] * len(spans)
        return lowest_of(draft.evidence[LOGPROBS], spans)
