"""Ours: use the threshold that keeps the requested risk, with a finite-sample guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from semspec.artifacts import base
from semspec.artifacts.binding import Measured, check_shares
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.risk import Certified, certify
from semspec.errors import UserError
from semspec.protocols import InServer, Kit, Run, Source
from semspec.registry import register
from semspec.results.step_truth import ASKED, LEAST
from semspec.rules._engine_probe import Scorer, for_engine
from semspec.rules._probed import Probed
from semspec.rules._risk import calibrating, check_guarantee
from semspec.rules.semantic_plus import ScoreSession
from semspec.types import Role, What


@register("accept", "semantic_risk")
@dataclass(frozen=True, kw_only=True)
class SemanticRisk(Probed):
    """Limits to ``risk`` the share of accepted steps that the target would hardly write (ours)."""

    risk: float = 0.05  # at most: P(an accepted step has a semantic probability below ``least``)
    least: float = 0.05  # a step below this is one that the target would hardly say
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set
    calibration: str | None = None  # a folder or Hub repository; None: the probe's own steps

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED, What.LOGPROBS})
    held: ClassVar[bool] = False  # any features do: the threshold is calibrated for this probe
    in_server: ClassVar[InServer | None] = InServer(
        {"risk": float}, server=("target_probe", "allow_mismatch")
    )

    def __post_init__(self) -> None:
        check_shares("accept", risk=self.risk, least=self.least, confidence=self.confidence)

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        return {"target": (self.target_probe, "plus")}

    target: ClassVar[Scorer]  # set by ``bind``
    certified: ClassVar[Certified]

    def asked_risk(self) -> Mapping[str, float]:
        return {ASKED: self.risk, LEAST: self.least}

    def loads(self, run: Run) -> Sequence[Source]:
        given = self.calibration
        more = [base.source("calibration", given)] if given else []
        return [*super().loads(run), *more]

    def bind(self, run: Run) -> Self:
        probe = self.load("target", run)
        columns, measured = self._steps(probe, run)
        found = certify(*columns, risk=self.risk, least=self.least, delta=1 - self.confidence)
        probed = f"probe={self.probe_sources(run)['target']}"
        if not self.allow_mismatch:
            command = partial(calibrating, probed, run)
            check_guarantee("semantic_risk", measured, run, command)
        return self.bound(target=for_engine(probe, run.offers), certified=found)

    def open(self, kit: Kit) -> ScoreSession:
        return ScoreSession(kit, self.target, self.certified.threshold)

    def _steps(
        self, probe: Probe, run: Run
    ) -> tuple[tuple[list[float], list[float], list[int]], Measured]:
        """Return scores, semantic probabilities and problem numbers of held-out steps, and how they were drafted."""
        temperature = run.sampling.temperature
        if self.calibration is not None:
            given = RiskCalibration.load(self.calibration)
            given.check_run(run, self.allow_mismatch)
            given.check_score(probe, self.allow_mismatch)
            return given.columns, given.measured
        made = probe.config.get("calibration")
        calibrate = calibrating(f"probe={self.probe_sources(run)['target']}", run)
        if made is None:
            raise UserError(f"probe {probe.name} was not calibrated for a risk: {calibrate}")
        if made["temperature"] != temperature and not self.allow_mismatch:
            way = f"calibrate it there ({calibrate})"
            if not temperature:  # nothing is sampled, so no meaning has a known probability
                way = "use accept=semantic_plus"
            raise UserError(
                f"probe {probe.name} was calibrated at temperature {made['temperature']:g}, and its"
                f" guarantee does not hold at {temperature:g}: {way}, or set"
                " accept.allow_mismatch=true to go on without the guarantee"
            )
        scores, semantic, groups = (column.tolist() for column in probe.calibration)
        # an older calibration does not say how it was drawn: it was drawn like the probe's data
        return (scores, semantic, groups), Measured.of({**probe.config["data"], **made})
