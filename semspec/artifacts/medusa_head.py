"""Medusa heads with the published checkpoints' names, checked strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import base, binding
from semspec.artifacts.model import Model
from semspec.deferred import Tensor, torch
from semspec.heads.medusa import Shape, config_of
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY
from semspec.registry import register
from semspec.storage.json_schema import Schema
from semspec.storage.tensors import Layout, tensor_names

ARCHITECTURE = "MedusaModel"
_MANY = {"type": "integer", "minimum": 1, "maximum": 64}
_SIZE = {"type": "integer", "minimum": 1, "maximum": binding.LARGEST}


@register("artifact", "medusa_head")
@dataclass
class MedusaHead(Model):
    """Medusa heads: each predicts one of the next tokens from the target's last hidden state."""

    name: str = "medusa_head"

    kind: ClassVar[str] = "medusa_head"
    architecture: ClassVar[str | None] = ARCHITECTURE
    schema: ClassVar[Schema] = {
        "type": "object",
        "required": ["architectures", "medusa_num_heads", "medusa_num_layers", "hidden_size", "vocab_size"],
        "properties": {
            "model_type": {"type": "string", "minLength": 1},
            "architectures": {"const": [ARCHITECTURE]},
            **dict.fromkeys(("medusa_num_heads", "medusa_num_layers"), _MANY),
            **dict.fromkeys(("hidden_size", "vocab_size"), _SIZE),
            "converted_from": base.SOURCE,
        },
    }  # fmt: skip
    made_by: ClassVar[str] = "scripts/train_medusa.py"
    tags: ClassVar[tuple[str, ...]] = ("medusa", "draft-head")

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        names = ("medusa_num_heads", "medusa_num_layers", "hidden_size", "vocab_size")
        return Shape(*(config[name] for name in names)).layout()

    @classmethod
    def own_tensors(cls, folder: Path, layout: Layout) -> dict[str, Tensor]:
        """Read the tensors; heads may lack their last matrices, and then use the target's."""
        if not any(name.count(".") == 2 for name in tensor_names(folder / base.TENSORS)):
            layout = {name: kind for name, kind in layout.items() if name.count(".") != 2}
        return base.read_tensors(folder, layout)

    def summary(self) -> str:
        config = self.config
        return (
            f"{config['medusa_num_heads']} Medusa heads of {config['medusa_num_layers']} block(s), for a"
            f" target of width {config['hidden_size']}."
        )

    @classmethod
    def example(cls) -> Self:
        shape = Shape(heads=3, blocks=1, width=EXAMPLE.width, vocabulary=EXAMPLE_VOCABULARY)
        made = {n: torch.arange(torch.Size(s).numel()).cos().reshape(s) for n, (s, _) in shape.layout().items()}  # fmt: skip
        return cls(config_of(shape, "owner/model"), made)
