"""Ours: ARC-Decode's bound ranks the tokens, and measured divergences set the threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from semspec.artifacts.binding import check_shares
from semspec.calibration.arc import COLUMNS, Setting, certified
from semspec.errors import UserError
from semspec.protocols import Kit, Run
from semspec.registry import register
from semspec.rules._risk import check_guarantee
from semspec.rules.arc import ArcSession, Calibrated, Known, calibrating


@register("accept", "arc_certified")
@dataclass(frozen=True, kw_only=True)
class ArcCertified(Calibrated):
    """Keeps tokens whose divergence is guaranteed to exceed ``js`` only rarely (ours)."""

    js: float = 0.05  # the next step's divergence, in nats (at most ln 2 = 0.693)
    risk: float = 0.05  # at most: P(a token that the bound accepts has a divergence above js)
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set

    @property
    def least_score(self) -> float:
        return 0.0  # the certified divergence takes the place of tau

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares("accept", js=self.js, risk=self.risk, confidence=self.confidence)

    def bind(self, run: Run) -> Self:
        setting, calibration, at = self.load(run.models["target"], run.sampling.temperature)
        if calibration is None:
            raise UserError(
                "accept=arc_certified needs measured divergences, and published constants have none:"
                f" make them with {calibrating(run)} and name them with accept.calibration=FOLDER"
            )
        pairs = calibration.evidence(at)
        drafted = pairs[pairs[:, COLUMNS.index("drafted")] > 0]  # what the rule decides on
        found = certified(
            drafted if len(drafted) else pairs,
            setting.constants,
            js=self.js,
            risk=self.risk,
            confidence=self.confidence,
        )
        # LTS >= 0 is U <= tau: the certified threshold takes the place of the budget
        by = replace(setting.constants, tau=-found.threshold)
        known = Known.of(Setting(setting.temperature, by), calibration)

        def command(options: str) -> str:
            return f"python -m semspec.calibrate {options} ..."

        if not self.allow_mismatch:
            check_guarantee("arc_certified", calibration.measured, run, command)
        return self.bound(known=known)

    def open(self, kit: Kit) -> ArcSession:
        return self.known.session(self, kit, 0.0)
