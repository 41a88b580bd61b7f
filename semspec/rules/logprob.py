"""A free score: the lowest log-probability that the target gives to a token of the step.

It comes from the pass that verifies anyway. An error sits in one or two tokens, so the lowest one
says more than a mean does. The threshold is a constant, or with ``calibration`` the
most lenient one that keeps the asked risk (``semspec.calibration.risk``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from semspec.artifacts.binding import Measured
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.risk import Certified, certify
from semspec.errors import UserError
from semspec.protocols import Kit, Run
from semspec.registry import register
from semspec.results.step_truth import ASKED, LEAST
from semspec.rules import _risk
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, What

LOGPROBS = Read(What.LOGPROBS)
# set with the rule, before a step of any pair was measured, and left as it was; what other
# thresholds do is in docs/measurements/step_level.md
THRESHOLD = -4.0


@register("accept", "logprob")
@dataclass(frozen=True, kw_only=True)
class LogProb(RuleBase):
    """Accepts a step whose least likely token is likely enough under the target."""

    threshold: float = THRESHOLD  # natural logarithm, at temperature 1; 0 rejects nearly everything
    calibration: str | None = None  # a folder or Hub repository: takes the place of the threshold
    risk: float | None = None  # with it: P(an accepted step has a semantic probability < least)
    least: float = 0.05  # a step below this is one that the target would hardly say
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set
    allow_mismatch: bool = False  # go on where the guarantee does not hold

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})

    def __post_init__(self) -> None:
        if not self.threshold <= 0:  # not a number is refused, too
            raise UserError(
                f"accept.threshold={self.threshold} is above 0, the largest log-probability there"
                " is: give a negative number, such as -4"
            )
        asked = {} if self.risk is None else {"risk": self.risk}
        _risk.check_shares(**asked, least=self.least, confidence=self.confidence)
        if (self.calibration is None) != (self.risk is None):
            raise UserError(
                "accept.calibration=FOLDER_OR_REPO and accept.risk= go together: give both, or"
                " accept.threshold= alone"
            )
        if self.calibration is None and (self.least, self.confidence) != (0.05, 0.95):
            raise UserError(
                "accept.least and accept.confidence are of a guarantee: give accept.calibration="
                " and accept.risk=, too"
            )
        if self.calibration is not None and self.threshold != THRESHOLD:
            raise UserError(
                f"accept.threshold={self.threshold:g} and accept.calibration, which sets it: give one"
                " of them"
            )

    certified: ClassVar[Certified | None] = None  # once bound, with a calibration

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> int | None:
        return 0 if split == "token" else 2

    def asked_risk(self) -> Mapping[str, float]:
        return {} if self.risk is None else {ASKED: self.risk, LEAST: self.least}

    def bind(self, run: Run) -> Self:
        if self.calibration is None or self.risk is None:
            return self
        model, temperature = run.models["target"], run.sampling.temperature
        given = RiskCalibration.load(self.calibration)
        given.check_score(None, self.allow_mismatch)
        given.check(
            model,
            split=run.split,
            temperature=temperature,
            allow_mismatch=self.allow_mismatch,
        )
        found = certify(*given.columns, risk=self.risk, least=self.least, delta=1 - self.confidence)
        revision = f"@{model.revision}" if model.revision else ""

        def command(options: str) -> str:
            return (
                f"python -m semspec.calibrate_risk score=logprob model.path={model.name}{revision}"
                f" split={run.split} temperature={temperature:g} {options} apart=FOLDER, then"
                " accept.calibration=FOLDER"
            )

        if not self.allow_mismatch:
            _risk.check_guarantee("logprob", Measured.of(given.config["data"]), run, command)
        return self.bound(certified=found)

    def open(self, kit: Kit) -> LogProbSession:
        certified = self.certified
        return LogProbSession(kit, certified.threshold if certified else self.threshold)


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
