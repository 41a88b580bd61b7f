"""A model in transformers' format, such as those of the embedded pair.

``config.json`` is transformers' own, so that any tool can load the folder; only the
manifest marks it as an artifact of semspec.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec.artifacts import base
from semspec.deferred import Tensor, torch
from semspec.registry import register
from semspec.storage import foreign
from semspec.storage.json_schema import Schema, array
from semspec.storage.tensors import Layout, check_finite


@register("artifact", "model")
@dataclass
class Model(base.Artifact):
    """A small language model's weights, tokenizer and figures, in transformers' format."""

    kind: ClassVar[str] = "model"
    # the architecture, in transformers' config, of this kind's folders; None: any that no other kind has
    architecture: ClassVar[str | None] = None
    schema: ClassVar[Schema] = {
        "type": "object",
        "required": ["model_type", "architectures"],
        "properties": {
            "model_type": {"type": "string", "minLength": 1},
            "architectures": array({"type": "string"}, minItems=1),
        },
    }
    made_by: ClassVar[str] = "scripts/train_tiny_pair.py"
    text_suffixes = base.Artifact.text_suffixes | {".json", ".jinja"}

    @classmethod
    def own_config(cls, folder: Path) -> dict[str, Any]:
        return base.read_json(folder, cls.kind)

    @classmethod
    def own_tensors(cls, folder: Path, layout: Layout) -> dict[str, Tensor]:
        """Read all tensors, refusing numbers that are not finite; transformers checks names and shapes."""
        path = folder / base.TENSORS
        with foreign.open_tensors(path) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_finite(path, found)
        return found

    def maker(self) -> str:
        source = self.config.get("converted_from")
        if isinstance(source, dict):
            revision = f"@{source['revision']}" if source.get("revision") else ""
            return f"python -m semspec.convert_head path={source.get('name')}{revision}"
        try:
            made = foreign.parse(self.texts.get("training.json", "{}").encode())
        except ValueError:
            made = None
        return str(made.get("script", self.made_by)) if isinstance(made, dict) else self.made_by

    def library(self) -> str:
        """Return transformers, or semspec for a draft head, which is a folder without a tokenizer."""
        return "transformers" if "tokenizer.json" in self.texts else "semspec"

    def summary(self) -> str:
        own = self.config
        size = f"{own.get('num_hidden_layers', '?')} layers, width {own.get('hidden_size', '?')}"
        return f"{', '.join(own['architectures'])}, {size}, for semspec's embedded pair."

    def check_content(self) -> None:
        if not self.tensors:
            raise ValueError("holds no tensors")

    @classmethod
    def example(cls) -> Self:
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4}
        return cls(config, {"model.embed_tokens.weight": torch.ones(2, 4)})
