"""A judge of single tokens: one linear map over the target's last hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.deferred import Tensor, torch
from semspec.models.location import EXAMPLE
from semspec.registry import register
from semspec.storage.json_schema import mapping
from semspec.storage.tensors import Layout


@register("artifact", "judge_head")
@dataclass
class JudgeHead(base.Artifact):
    """Predicts for each token that the target has read how probably it is right."""

    kind = "judge_head"
    schema = base.of_schema(
        {"model": binding.model_with("layers", "width"), "metrics": mapping({"type": "number"})},
        ("model", "data", "training", "metrics"),
    )
    made_by = "python scripts/train_tiny_judge_head.py"
    tags = ("judge-decoding",)

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        width = int(config["model"]["width"])
        return {"weight": ((width,), (torch.float32,)), "bias": ((1,), (torch.float32,))}

    def figures(self) -> Mapping[str, float]:
        return {name: float(value) for name, value in self.config["metrics"].items()}

    def __call__(self, states: Tensor) -> Tensor:
        """Map the last layer's states after the final norm [tokens, width] to [tokens] in [0, 1]."""
        weight, bias = (self.tensors[name].to(states.device) for name in ("weight", "bias"))
        return (states.float() @ weight + bias).sigmoid()

    @classmethod
    def example(cls) -> Self:
        config = cls.config_of(
            model=binding.of(EXAMPLE),
            data={"name": "owner/data"},
            training={"tokens": 8},
            metrics={"auroc": 0.75},
        )
        return cls(config, {"weight": torch.linspace(-1, 1, 4), "bias": torch.zeros(1)})
