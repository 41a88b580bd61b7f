"""An EAGLE-3 head in the published checkpoints' format: names, shapes and types are checked strictly.

``config.json`` and the tensors' names are those of the published heads, so that SGLang and vLLM load the
folder as well; which target it belongs to is checked when it is loaded beside one (``heads/eagle3.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import base, binding
from semspec.artifacts.model import Model
from semspec.deferred import Tensor, torch
from semspec.heads.eagle3 import LAST, Shape, complete_maps
from semspec.models.location import EXAMPLE_VOCABULARY
from semspec.registry import register
from semspec.storage.json_schema import Schema
from semspec.storage.tensors import Layout, tensor_names

ARCHITECTURE = "LlamaForCausalLMEagle3"
_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("vocab_size", "draft_vocab_size", "target_hidden_size"),
)


@register("artifact", "eagle3_head")
@dataclass
class Eagle3Head(Model):
    """An EAGLE-3 head: one decoder layer that drafts from the target's low, middle and high states."""

    name: str = "eagle3_head"

    kind: ClassVar[str] = "eagle3_head"
    architecture: ClassVar[str | None] = ARCHITECTURE
    schema: ClassVar[Schema] = {
        "type": "object",
        "required": ["model_type", "architectures", *_SIZES[:7]],
        "properties": {
            "model_type": {"type": "string", "minLength": 1},
            "architectures": {"const": [ARCHITECTURE]},
            "num_hidden_layers": {"const": 1},
            "norm_before_residual": {"type": "boolean"},
            "converted_from": base.SOURCE,
            **{
                name: {"type": "integer", "minimum": 1, "maximum": binding.LARGEST}
                for name in _SIZES
            },
        },
    }
    made_by: ClassVar[str] = "scripts/train_eagle3.py"
    tags: ClassVar[tuple[str, ...]] = ("eagle3", "draft-head")

    @classmethod
    def own_tensors(cls, folder: Path, layout: Layout) -> dict[str, Tensor]:
        """Read the tensors; a head may lack what its target has and the vocabulary maps, but nothing else."""
        there = tensor_names(folder / base.TENSORS)
        return base.read_tensors(folder, _shape(cls.own_config(folder)).layout(there))

    def summary(self) -> str:
        config = self.config
        return (
            f"EAGLE-3 head of width {config['hidden_size']} that can draft {config['draft_vocab_size']} of"
            f" {config['vocab_size']} tokens."
        )

    def check_content(self) -> None:
        complete_maps(dict(self.tensors), self.config["vocab_size"])

    @classmethod
    def example(cls) -> Self:
        many = EXAMPLE_VOCABULARY
        sizes = dict(zip(_SIZES[:7], (4, 6, 2, 1, 2, many, many - 2), strict=True))
        config = {
            "model_type": "llama",
            "architectures": [ARCHITECTURE],
            "num_hidden_layers": 1,
            **sizes,
        }
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}
        made: dict[str, Tensor] = {}
        for name, (shape, types) in _shape(config).layout({LAST}).items():
            if torch.int64 in types:
                continue
            made[name] = torch.arange(torch.Size(shape).numel()).cos().reshape(shape)
        own = torch.arange(many)[torch.arange(many) % 6 != 2]
        made["d2t"], made["t2d"] = own - torch.arange(len(own)), torch.zeros(many, dtype=torch.bool)
        made["t2d"][own] = True
        return cls(config, made)


def _shape(config: Mapping[str, Any]) -> Shape:
    """Return the part of the head's shape that its own config gives; the rest depends on the target."""
    width = config["hidden_size"]
    return Shape(
        width=width,
        target_width=config.get("target_hidden_size", width),
        inner=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=0.0,
        vocabulary=config["vocab_size"],
        draft_vocabulary=config["draft_vocab_size"],
        layers=(0, 0, 0),
        frequencies=torch.empty(0),
        rope_scale=1.0,
    )
