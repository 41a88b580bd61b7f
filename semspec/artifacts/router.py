"""A router of ``accept=arbitrage``: predicts from the draft's states over its step whether the target's would be better.

It is a ``Probe`` of the draft model with another label: 1 where the target's advantage, the mean score of the steps
that it wrote in the same context minus the score of the drafted one, is above a margin. It belongs to a pair of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.artifacts.probe import COMMON, REQUIRED, Probe
from semspec.models.location import EXAMPLE, ModelFacts
from semspec.protocols import Run
from semspec.registry import register
from semspec.storage.json_schema import record

MARGIN = {"type": "number", "minimum": -1, "maximum": 1}
NAMED = ("id", "revision", "fingerprint", "tokenizer")  # a router reads no states of the target


@register("artifact", "router")
@dataclass
class Router(Probe):
    """Predicts the probability that the target's own step beats the drafted one by a margin.

    ``tensors`` are those of a ``Probe``; ``calibration.semantic`` has the labels of the test's steps.
    """

    kind = "router"
    schema = base.of_schema(
        {
            "role": {"enum": ["draft"]},
            **COMMON,
            "target": binding.MODEL,
            "advantage": record(margin=MARGIN),
        },
        (*REQUIRED, "target", "advantage"),
    )
    made_by = "python -m semspec.train_probe role=draft label=advantage"
    tags = ("routing",)
    listed = ("auroc", "ece")

    @classmethod
    def example(cls, role: str = "draft", features: str = "paper") -> Self:
        like = Probe.example(role, features)
        config = like.config | {"kind": cls.kind, "target": named(EXAMPLE)}
        return cls(config | {"advantage": {"margin": 0.25}}, like.tensors)

    def summary(self) -> str:
        data, target = self.config["data"], self.config["target"]["id"]
        margin = self.config["advantage"]["margin"]
        known = {"samples", "drafted", "cluster"} <= data.keys()
        told = " ({samples} drafted steps and {drafted} of the target per context; meanings compared by cluster={cluster})"
        return (
            f"A router of `accept=arbitrage` for drafts of `{self.config['model']['id']}` under the target `{target}`:"
            " from the draft's states over its step it predicts the probability that the target's own step is better by"
            f" more than {margin:g}. A step's score is the share of the target's steps in this context that mean the"
            f" same{told.format_map(data) if known else ''}."
        )

    def figures(self) -> Mapping[str, float]:
        order = self.config["metrics"].get("advantage", {}).get("spearman")
        return {**super().figures(), **({} if order is None else {"spearman": order})}

    def check_pair(self, run: Run, allow_mismatch: bool, command: str) -> None:
        """Raise UserError if it was made for another draft, target, split or temperature than a run's."""
        self.check(
            run.models["draft"],
            split=run.split,
            temperature=run.sampling.temperature,
            allow_mismatch=allow_mismatch,
            command=command,
        )
        self.check(
            run.models["target"], at="target", allow_mismatch=allow_mismatch, command=command
        )


def named(model: ModelFacts) -> dict[str, Any]:
    """Describe a model for a config if none of its states are read."""
    return {name: value for name, value in binding.of(model).items() if name in NAMED}
