"""Shared code of rules that keep a requested risk: options, calibration, and whether its guarantee covers the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from semspec import registry
from semspec.artifacts import base
from semspec.artifacts.binding import Measured, check_alike, check_shares
from semspec.artifacts.risk import RiskCalibration
from semspec.errors import UserError
from semspec.protocols import Run, Source
from semspec.results.step_truth import ASKED, LEAST
from semspec.rules._base import RuleBase


class Certifiable(RuleBase):
    """A rule whose thresholds may come from a calibration of the score with the rule's name.

    Subclasses declare these options themselves, which sets their order.
    """

    calibration: str | None
    risk: float | None
    least: float
    confidence: float
    allow_mismatch: bool

    certify: ClassVar[Callable[..., Any]]  # computes thresholds from columns, for a risk

    def columns(self, given: RiskCalibration) -> tuple[list[Any], ...]:
        """Return the columns to certify thresholds on; raise UserError if the calibration is of another score."""
        raise NotImplementedError

    def check_risk(self, alone: str = "") -> None:
        """Raise UserError unless risk and calibration are given together; ``alone`` names an alternative to both."""
        check_shares("accept", risk=self.risk, least=self.least, confidence=self.confidence)
        if (self.calibration is None) != (self.risk is None):
            raise UserError(
                "accept.calibration=FOLDER_OR_REPO and accept.risk= work only together:"
                f" give both{alone}"
            )
        if self.calibration is None and (self.least, self.confidence) != (0.05, 0.95):
            raise UserError(
                f"accept.least={self.least:g}, accept.confidence={self.confidence:g}: these"
                " need accept.calibration= and accept.risk=: give both, or leave them out"
            )

    def asked_risk(self) -> Mapping[str, float]:
        return {} if self.risk is None else {ASKED: self.risk, LEAST: self.least}

    def loads(self, run: Run) -> Sequence[Source]:
        return [base.source("calibration", self.calibration)] if self.calibration else []

    def bind(self, run: Run) -> Self:
        if self.calibration is None or self.risk is None:
            return self
        given, name = RiskCalibration.load(self.calibration), registry.name_of(self)
        columns = self.columns(given)
        given.check_run(run, self.allow_mismatch)
        asked = {"risk": self.risk, "least": self.least, "delta": 1 - self.confidence}
        found = self.certify(*columns, **asked)
        model = run.models["target"]
        revision = f"@{model.revision}" if model.revision else ""
        scored = f"score={name} model.path={model.name}{revision} split={run.split}"
        if not self.allow_mismatch:
            check_guarantee(name, given.measured, run, partial(calibrating, scored, run))
        return self.bound(certified=found)


def calibrating(scored: str, run: Run, how: str = "") -> str:
    """Return the command that calibrates for a run.

    ``scored`` and ``how`` are options of that command: what to score, and how drafts are drawn.
    """
    at = f"temperature={run.sampling.temperature:g} {how}".rstrip()
    return f"python -m semspec.calibrate_risk {scored} {at} apart=FOLDER, then accept.calibration=FOLDER"


def check_guarantee(rule: str, measured: Measured, run: Run, command: Callable[[str], str]) -> None:
    """Raise UserError if a run drafts differently from the steps that the guarantee was measured on.

    ``command`` turns the options that describe the run into the command that calibrates for it.
    """
    if run.drafts is None:
        return
    options = measured.options(run.sampling, run.drafts)
    way = f", calibrate for this run ({command(options)})" if options else ""
    unlike = measured.unlike(run.sampling, run.drafts)
    check_alike(
        "accept", f"accept={rule}", unlike, f"run with the settings of the calibration{way}"
    )
