"""A head of ``stop=probe``: predicts from the target's states at the end of a step whether the thinking is enough.

It is a ``Probe`` with another label: 1 where the target, forced to answer there, gave the right answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from semspec.artifacts import base
from semspec.artifacts.probe import COMMON, FEATURES, REQUIRED, TEST, Probe
from semspec.registry import register
from semspec.storage.json_schema import array, mapping, record

SPANS = ("step", "closing")


@register("artifact", "stop_probe")
@dataclass
class StopProbe(Probe):
    """Predicts whether an answer forced at the end of a step would be right.

    ``tensors`` are those of a ``Probe``; ``calibration.semantic`` has the labels of the test's steps.
    """

    kind = "stop_probe"
    schema = base.of_schema(
        {
            "role": {"enum": ["target"]},
            **COMMON,
            # what the states are pooled over: the step, or the beginning of an answer after it
            "features": record(**FEATURES, span={"enum": list(SPANS)}),
            # how the thinking was closed and the answer begun to get the labels
            "stop": mapping({"type": "string", "maxLength": 4096}) | {"required": ["words", "answer"]},
            "metrics": {
                "type": "object",
                "properties": {"test": TEST, "auroc_interval": array({"type": "number"})},
            },
        },
        (*REQUIRED, "stop"),
    )  # fmt: skip
    made_by = "python -m semspec.calibrate_stop stop=probe train=true"
    tags = ("early-exit",)
    listed = ("auroc", "ece")

    @property
    def span(self) -> str:
        return str(self.config["features"]["span"])

    @classmethod
    def example(cls, span: str = "step", features: str = "paper") -> Self:
        like = Probe.example("target", features)
        config = {**like.config, "kind": cls.kind, "stop": {"words": "", "answer": ""}}
        config["features"] = {**like.config["features"], "span": span}
        return cls(config, like.tensors)
