"""Held-out steps that thresholds with a guarantee are certified on, for a probe or the free score.

A probe holds such steps of its own; these are others, drawn for another data set or temperature,
and published separately. The threshold depends on the requested risk, so the steps themselves are
stored: ``accept=semantic_risk calibration=FOLDER_OR_REPO risk=0.02``. The free score of
``accept=logprob`` belongs to no probe: its steps are stored with their lowest log-probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.artifacts.probe import Probe
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.registry import register
from semspec.storage.json_schema import mapping, record
from semspec.storage.tensors import Layout

COLUMNS = ("scores", "semantic", "groups")
Columns = Mapping[str, Tensor]
Facts = Mapping[str, Any]


@register("artifact", "risk")
@dataclass
class RiskCalibration(base.Artifact):
    """Scores and semantic probabilities of fresh steps, from which thresholds are certified.

    The scores are those of ``probe``, or the steps' lowest log-probabilities. ``tensors``: ``scores`` and ``semantic``
    [steps], ``groups`` [steps] (problem numbers).
    """

    kind = "risk"
    schema = base.of_schema(
        {
            "model": binding.MODEL,
            "split": binding.SPLIT,
            "temperature": binding.TEMPERATURE,
            "probe": record(name=binding.TEXT, digest=binding.TEXT),
            "score": {"enum": ["logprob", "cascade"]},  # instead of a probe
            "metrics": mapping({"type": ["number", "null"]}),
        },
        ("model", "split", "temperature", "data", "metrics"),
    )
    made_by = "python -m semspec.calibrate_risk"
    tags = ("semantic-probability", "risk-control")

    @classmethod
    def of(cls, probe: Probe, columns: Columns, metrics: Facts, how: Facts | None = None) -> Self:
        """Build the calibration of a probe, bound to the same model, split and temperature.

        ``how`` says how the steps were drawn: temperature, top_k, top_p, min_p, and the draft that wrote them.
        """
        drawn = {"temperature": probe.config["temperature"]["sampled"]} | dict(how or {})
        by = {"probe": {"name": probe.name, "digest": probe.digest}}
        return cls._of(by, probe.config["model"], probe.config["split"], columns, metrics, drawn)

    @classmethod
    def of_logprobs(
        cls, model: ModelFacts, split: str, columns: Columns, metrics: Facts, how: Facts
    ) -> Self:
        """Build the calibration of the free score of a target's steps; ``how`` as in ``of``.

        A column ``drafts``, the draft's own lowest log-probabilities, makes it the calibration of a cascade.
        """
        score = "cascade" if "drafts" in columns else "logprob"
        return cls._of({"score": score}, binding.of(model), split, columns, metrics, how)

    @classmethod
    def _of(
        cls, by: Facts, model: Facts, split: str, columns: Columns, metrics: Facts, how: Facts
    ) -> Self:
        data = {"steps": len(columns["scores"]), "problems": len(set(columns["groups"].tolist()))}
        drawn = dict(how)
        temperature = drawn.pop("temperature")
        config = cls.config_of(
            model=dict(model),
            split=split,
            temperature=dict.fromkeys(("sampled", "lowest", "highest"), temperature),
            **by,
            data=drawn | data,
            metrics=dict(metrics),
        )
        return cls(config, dict(columns))

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        if ("probe" in config) == ("score" in config):
            raise ValueError("it names either its probe or its score")
        numbers = dict.fromkeys(("scores", "semantic"), ((-1,), (torch.float32,)))
        if config.get("score") == "cascade":
            numbers["drafts"] = numbers["scores"]
        return {**numbers, "groups": ((-1,), (torch.int64,))}

    def check_content(self) -> None:
        if len({len(column) for column in self.tensors.values()}) != 1:
            raise ValueError("the columns differ in length")
        scores = self.tensors["scores"]
        if self.free:
            for name in {"scores", "drafts"} & set(self.tensors):
                if not bool((self.tensors[name] <= 0).all()):
                    raise ValueError(f"{name} are no log-probabilities")
            scores = scores.exp()
        for name, column in (("scores", scores), ("semantic", self.tensors["semantic"])):
            if not bool(((column >= 0) & (column <= 1)).all()):
                raise ValueError(f"{name} are no probabilities")

    @property
    def free(self) -> bool:
        """Return True if its scores are lowest log-probabilities rather than a probe's."""
        return "score" in self.config

    @property
    def columns(self) -> tuple[list[float], list[float], list[int]]:
        """Return scores, semantic probabilities and problem numbers."""
        scores, semantic, groups = (self.tensors[name].tolist() for name in COLUMNS)
        return scores, semantic, groups

    @property
    def cascade(self) -> tuple[list[float], list[float], list[float], list[int]]:
        """Return the draft's scores, then ``columns``; raise UserError unless it is a cascade's calibration."""
        if self.config.get("score") != "cascade":
            raise UserError(
                f"risk calibration {self.name} has no scores of the draft model: make one with"
                " python -m semspec.calibrate_risk score=cascade"
            )
        return (self.tensors["drafts"].tolist(), *self.columns)

    def check_score(self, probe: Probe | None, allow_mismatch: bool) -> None:
        """Raise UserError if another probe scored the steps: a threshold holds for its own score only.

        Without a probe the scores must be lowest log-probabilities; ``allow_mismatch`` never accepts
        one kind of score in place of the other.
        """
        if self.free and probe is not None:
            raise UserError(
                f"risk calibration {self.name} holds lowest log-probabilities, no probe's scores: use it"
                " with accept=logprob, or make one with python -m semspec.calibrate_risk probe=..."
            )
        if self.free:
            return
        made = self.config["probe"]
        if probe is None:
            raise UserError(
                f"risk calibration {self.name} holds scores of the probe {made['name']}: use it with"
                " accept=semantic_risk, or make one with python -m semspec.calibrate_risk score=logprob"
            )
        if made["digest"] != probe.digest and not allow_mismatch:
            raise UserError(
                f"risk calibration {self.name} was made with the probe {made['name']}"
                f" ({made['digest']}), this is {probe.name} ({probe.digest}): make one with"
                " python -m semspec.calibrate_risk, or set accept.allow_mismatch=true"
            )

    def summary(self) -> str:
        if self.config.get("score") == "cascade":
            return (
                "Lowest log-probabilities of fresh steps, the draft model's own and the target's, with their semantic"
                " probabilities, from which thresholds of `accept=cascade` are certified."
            )
        if self.free:
            return (
                "Lowest log-probabilities of fresh steps with their semantic probabilities, from"
                " which thresholds of `accept=logprob` are certified."
            )
        return super().summary()

    def maker(self) -> str:
        return f"{self.made_by} score={self.config['score']}" if self.free else self.made_by

    def figures(self) -> Mapping[str, float]:
        return {k: float(v) for k, v in self.config["metrics"].items() if v is not None}

    @classmethod
    def example(cls) -> Self:
        columns = {n: torch.linspace(0, 1, 4) for n in ("scores", "semantic")}
        columns["groups"] = torch.arange(4)
        return cls.of(Probe.example(), columns, {"threshold_0.05": 0.5})
