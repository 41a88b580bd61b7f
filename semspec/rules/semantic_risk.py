"""Ours: the threshold that keeps the asked risk, with a finite-sample guarantee."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from semspec.artifacts.binding import Measured
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.risk import Certified, certify
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.protocols import Kit
from semspec.registry import register
from semspec.results.step_truth import ASKED, LEAST
from semspec.rules import _risk
from semspec.rules._engine_probe import Scorer, seated
from semspec.rules._probed import Probed
from semspec.rules.semantic_plus import ScoreSession
from semspec.types import Role, Sampling, What


@register("accept", "semantic_risk")
@dataclass(frozen=True, kw_only=True)
class SemanticRisk(Probed):
    """Accepts steps so that at most this share of them is what the target would hardly say (ours)."""

    risk: float = 0.05  # P(an accepted step has a semantic probability below ``least``), at most
    least: float = 0.05  # a step below this is one that the target would hardly say
    confidence: float = 0.95  # of the guarantee, over the draw of the calibration set
    calibration: str | None = None  # a folder or Hub repository; None: the probe's own steps

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED, What.LOGPROBS})
    held: ClassVar[bool] = False  # the threshold is the probe's own, whatever it reads

    def __post_init__(self) -> None:
        _risk.check_shares(risk=self.risk, least=self.least, confidence=self.confidence)

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        return {"target": (self.target_probe, "plus")}

    def asked(self) -> Mapping[str, float]:
        return {ASKED: self.risk, LEAST: self.least}

    def prepare(
        self, models: Mapping[Role, ModelFacts], split: str, temperature: float
    ) -> PreparedRisk:
        probe = self.load(self.target_probe, "plus", "target", models["target"], split, temperature)
        columns, measured = self._steps(probe, models["target"], split, temperature)
        scores, semantic, groups = columns
        return PreparedRisk(
            **self.options(),
            target=probe,
            certified=certify(
                scores,
                semantic,
                groups,
                risk=self.risk,
                least=self.least,
                delta=1 - self.confidence,
            ),
            measured=measured,
            place=self._place(models, split),
        )

    def _place(self, models: Mapping[Role, ModelFacts], split: str) -> str:
        """The probe, as a command takes it."""
        path, revision = self.places({"target": models["target"]}, split)["target"]
        return f"{path}@{revision}" if revision else path

    def _steps(
        self, probe: Probe, model: ModelFacts, split: str, temperature: float
    ) -> tuple[tuple[list[float], list[float], list[int]], Measured]:
        """Scores, semantic probabilities and problem numbers of steps that were held out."""
        if self.calibration is not None:
            given = RiskCalibration.load(self.calibration)
            given.check(
                model, split=split, temperature=temperature, allow_mismatch=self.allow_mismatch
            )
            given.check_score(probe, self.allow_mismatch)
            return given.columns, Measured.of(given.config["data"])
        told = probe.config.get("calibration")
        if told is None:
            way = _command(self._place({"target": model}, split), f"temperature={temperature:g}")
            raise UserError(f"probe {probe.name} was not calibrated for a risk: {way}")
        if told["temperature"] != temperature and not self.allow_mismatch:
            place = self._place({"target": model}, split)
            way = f"calibrate it there ({_command(place, f'temperature={temperature:g}')})"
            if not temperature:  # nothing is sampled, and so no probability of a meaning known
                way = "use accept=semantic_plus"
            raise UserError(
                f"probe {probe.name} was calibrated at temperature {told['temperature']:g}, and its"
                f" guarantee does not hold at {temperature:g}: {way}, or set"
                " accept.allow_mismatch=true to go on without the guarantee"
            )
        scores, semantic, groups = (column.tolist() for column in probe.calibration)
        # an older calibration says nothing of its own: it was drawn as the probe's data were
        return (scores, semantic, groups), Measured.of({**probe.config["data"], **told})


@dataclass(frozen=True, kw_only=True)
class PreparedRisk(SemanticRisk):
    """With its probe and the threshold that was certified."""

    target: Scorer
    certified: Certified
    measured: Measured
    place: str

    def hold(self, sampling: Sampling, drafts: str) -> None:
        def command(options: str) -> str:
            return _command(self.place, f"temperature={sampling.temperature:g} {options}")

        if not self.allow_mismatch:
            _risk.hold("semantic_risk", self.measured, sampling, drafts, command)

    def on(self, offers: Mapping[Role, Collection[What]]) -> PreparedRisk:
        return replace(self, target=seated(self.target, offers["target"]))

    def open(self, kit: Kit) -> ScoreSession:
        return ScoreSession(kit, self.target, self.certified.threshold)


def _command(place: str, options: str) -> str:
    """What calibrates for another run, beside the probe."""
    return (
        f"python -m semspec.calibrate_risk probe={place} {options} apart=FOLDER, then"
        " accept.calibration=FOLDER"
    )
