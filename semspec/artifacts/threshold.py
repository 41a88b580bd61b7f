"""A threshold of the free score, measured on a pair without labels, with the steps it comes from.

``accept=logprob`` makes one at the start of a run and reuses it in the next (``semspec.rules.logprob``). It guarantees
nothing; the calibration that ``semspec.calibrate_risk score=logprob`` makes does (``semspec.artifacts.risk``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.calibration.threshold import Chosen, choose
from semspec.deferred import torch
from semspec.registry import register
from semspec.storage.json_schema import record
from semspec.storage.tensors import Layout

COLUMNS = ("own", "drafted")


@register("artifact", "threshold")
@dataclass
class MeasuredThreshold(base.Artifact):
    """Lowest log-probabilities of a target's own steps and of drafted ones, from which a threshold is derived.

    ``tensors``: ``own`` and ``drafted`` [steps], of the same contexts. ``config["measured"]``: what they were measured with
    (identities of the weights, drafter, split and sampling).
    """

    kind = "threshold"
    schema = base.of_schema(
        {
            "measured": {"type": "object"},
            "split": binding.SPLIT,
            "threshold": {"type": "number", "maximum": 0},
            "score_temperature": binding.DEGREES,  # of the log-probabilities; without it: 1
            "metrics": record(
                **dict.fromkeys(("own_rejected", "accepted", "doubtful"), binding.DEGREES)
            ),
        },
        ("measured", "split", "threshold", "data", "metrics"),
    )
    made_by = "python -m semspec.run accept=logprob"
    tags = ("log-probability",)

    @classmethod
    def of(
        cls,
        own: list[float],
        drafted: list[float],
        measured: Mapping[str, Any],
        split: str,
        how: Mapping[str, Any] | None = None,
        temperature: float = 1.0,
    ) -> Self:
        """Choose the threshold from steps' scores, which are at ``temperature``, and store both."""
        chosen = choose(own, drafted, temperature=temperature)
        columns = {"own": torch.tensor(own), "drafted": torch.tensor(drafted)}
        config = cls.config_of(
            measured=dict(measured),
            split=split,
            threshold=chosen.threshold,
            score_temperature=temperature,
            data={"steps": len(own), **(how or {})},
            metrics={
                "own_rejected": chosen.own_rejected,
                "accepted": chosen.accepted,
                "doubtful": chosen.doubtful,
            },
        )
        return cls(config, columns)

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        return dict.fromkeys(COLUMNS, ((-1,), (torch.float32,)))

    def check_content(self) -> None:
        own, drafted = (self.tensors[name] for name in COLUMNS)
        if not (len(own) and len(drafted)):
            raise ValueError("it holds no steps")
        for name in COLUMNS:
            if not bool((self.tensors[name] <= 0).all()):  # refuses NaN, too
                raise ValueError(f"{name} holds what is no log-probability")

    @property
    def chosen(self) -> Chosen:
        """Return the threshold and its figures, as ``choose`` returned them."""
        metrics = self.config["metrics"]
        own, drafted = (len(self.tensors[name]) for name in COLUMNS)
        temperature = self.config.get("score_temperature", 1.0)
        return Chosen(self.config["threshold"], own, drafted, **metrics, temperature=temperature)

    def figures(self) -> Mapping[str, float]:
        return {
            "threshold": float(self.config["threshold"]),
            **{name: float(value) for name, value in self.config["metrics"].items()},
        }

    @classmethod
    def example(cls) -> Self:
        own = torch.linspace(-3, -1, 64).tolist()
        drafted = torch.linspace(-9, -1, 64).tolist()
        return cls.of(own, drafted, {"drafter": "lm"}, "paragraph")
