"""Held-out steps that a threshold with a guarantee is taken from, for one probe.

A probe carries such steps of its own; these are others, drawn for another data set or temperature,
and published by themselves. The threshold depends on the risk that is asked for, so that what is
kept are the steps: ``accept=semantic_risk calibration=FOLDER_OR_REPO risk=0.02``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from semspec.artifacts import _binding, base
from semspec.artifacts._schema import Schema
from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.registry import register

COLUMNS = ("scores", "semantic", "groups")
SCHEMA = base.of_schema(
    {
        "model": _binding.MODEL,
        "split": {"type": "string", "minLength": 1, "maxLength": 64},
        "temperature": _binding.TEMPERATURE,
        "probe": {
            "type": "object",
            "required": ["name", "digest"],
            "additionalProperties": False,
            "properties": {"name": _binding.TEXT, "digest": _binding.TEXT},
        },
    },
    ("model", "split", "temperature", "probe", "data", "metrics"),
)


@register("artifact", "risk")
@dataclass
class RiskCalibration(base.Artifact):
    """Scores of fresh steps with their semantic probabilities, which thresholds are certified on.

    ``tensors``: ``scores`` and ``semantic`` [steps], ``groups`` [steps] (problem numbers).
    """

    name: str = "risk"

    kind: ClassVar[str] = "risk"
    schema: ClassVar[Schema] = SCHEMA
    made_by: ClassVar[str] = "python -m semspec.calibrate_risk"
    tags: ClassVar[tuple[str, ...]] = ("semantic-probability", "risk-control")

    @classmethod
    def of(
        cls,
        probe: Probe,
        columns: Mapping[str, Tensor],
        metrics: Mapping[str, Any],
        how: Mapping[str, Any] | None = None,
    ) -> Self:
        """The calibration of a probe, bound to what the probe is bound to.

        ``how`` the steps were drawn: temperature, top_k, top_p, and the draft that wrote them.
        """
        data = {"steps": len(columns["scores"]), "problems": len(set(columns["groups"].tolist()))}
        drawn = dict(how or {})
        temperature = drawn.pop("temperature", probe.config["temperature"]["sampled"])
        config = {
            "kind": cls.kind,
            "version": cls.version,
            "model": dict(probe.config["model"]),
            "split": probe.config["split"],
            "temperature": dict.fromkeys(("sampled", "lowest", "highest"), temperature),
            "probe": {"name": probe.name, "digest": probe.digest},
            "data": data | drawn,
            "metrics": dict(metrics),
        }  # fmt: skip
        return cls(config, dict(columns))

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> base.Layout:
        made: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = dict.fromkeys(
            ("scores", "semantic"), ((-1,), (torch.float32,))
        )
        return made | {"groups": ((-1,), (torch.int64,))}

    def check_content(self) -> None:
        if len({len(self.tensors[name]) for name in COLUMNS}) != 1:
            raise ValueError("the columns differ in length")
        for name in ("scores", "semantic"):
            column = self.tensors[name]
            if not bool(((column >= 0) & (column <= 1)).all()):
                raise ValueError(f"{name} are no probabilities")

    @property
    def columns(self) -> tuple[list[float], list[float], list[int]]:
        """Scores, semantic probabilities and problem numbers."""
        scores, semantic, groups = (self.tensors[name].tolist() for name in COLUMNS)
        return scores, semantic, groups

    def check_probe(self, probe: Probe, allow_mismatch: bool) -> None:
        """Refuses another probe's steps: a threshold on one score says nothing of another."""
        made = self.config["probe"]
        if made["digest"] != probe.digest and not allow_mismatch:
            raise UserError(
                f"risk calibration {self.name} was made with the probe {made['name']}"
                f" ({made['digest']}), this is {probe.name} ({probe.digest}): make one with"
                " python -m semspec.calibrate_risk, or set accept.allow_mismatch=true"
            )

    def figures(self) -> Mapping[str, float]:
        return {k: float(v) for k, v in self.config["metrics"].items() if v is not None}

    @classmethod
    def example(cls) -> Self:
        columns = {n: torch.linspace(0, 1, 4) for n in ("scores", "semantic")}
        columns["groups"] = torch.arange(4)
        return cls.of(Probe.example(), columns, {"threshold_0.05": 0.5})
