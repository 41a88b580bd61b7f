"""Medusa heads (Cai et al. 2024, section 2.1): several tokens from one last hidden state.

Head k predicts token i + k + 2 from the state of position i, whatever the tokens in between:
    p_k = softmax(W2_k (h + SiLU(W1_k h + b_k)))
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.heads._files import head_file, number, stored_types, target_facts
from semspec.models.folder import read_json
from semspec.storage.tensors import Layout, read_tensor_file

FILE = "medusa_lm_head.safetensors"
MOST = 64  # heads, and blocks in each


@dataclass(frozen=True, slots=True)
class Shape:
    """``blocks`` residual blocks in each head, and the target's width and vocabulary."""

    heads: int
    blocks: int
    width: int
    vocabulary: int

    def layout(self) -> Layout:
        """Return every tensor of a checkpoint: HEAD.BLOCK.linear.weight, then the last matrix."""
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(self.heads):
            for block in range(self.blocks):
                shapes[f"{head}.{block}.linear.weight"] = (self.width, self.width)
                shapes[f"{head}.{block}.linear.bias"] = (self.width,)
            shapes[f"{head}.{self.blocks}.weight"] = (self.vocabulary, self.width)
        return {name: (shape, stored_types()) for name, shape in shapes.items()}


class Medusa:
    """The heads, stacked; differentiable."""

    def __init__(self, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        self.shape = shape

        def stacked(name: str) -> Tensor:
            return torch.stack([tensors[f"{head}.{name}"] for head in range(shape.heads)])

        self.blocks = [
            (stacked(f"{block}.linear.weight").mT, stacked(f"{block}.linear.bias")[:, None])
            for block in range(shape.blocks)
        ]
        self.last = stacked(f"{shape.blocks}.weight").mT

    @classmethod
    def load(cls, folder: Path, target: Path) -> Self:
        """Read a checkpoint of heads that belong to this target; raise UserError if it does not fit."""
        config = read_json(folder / "config.json")
        _, width, vocabulary = target_facts(target)
        many = ("medusa_num_heads", "medusa_num_layers")
        heads, blocks = (number(config, name, most=MOST) for name in many)
        shape = Shape(heads, blocks, width, vocabulary)
        tensors = read_tensor_file(head_file(folder, FILE), shape.layout())
        with torch.inference_mode():
            return cls(shape, {name: tensor.float() for name, tensor in tensors.items()})

    def on(self, device: torch.device) -> Self:
        """Return the heads on the device of the target's states; in bfloat16 on CUDA."""
        if device == self.last.device:
            return self
        twin = copy(self)
        twin.last = self.last.to(device, torch.bfloat16)
        twin.blocks = [
            (w.to(device, torch.bfloat16), b.to(device, torch.bfloat16)) for w, b in self.blocks
        ]
        return twin

    def logits(self, states: Tensor) -> Tensor:
        """Return logits [heads, n, vocabulary] in float32 of states [n, width]."""
        x = states.to(self.last.dtype).expand(self.shape.heads, *states.shape)
        for weight, bias in self.blocks:
            x = x + F.silu(torch.baddbmm(bias, x, weight))
        return (x @ self.last).float()


def config_of(shape: Shape, target: str) -> dict[str, Any]:
    """Return config.json like the published checkpoints'."""
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "base_model_name_or_path": target,
        "medusa_num_heads": shape.heads,
        "medusa_num_layers": shape.blocks,
        "hidden_size": shape.width,
        "vocab_size": shape.vocabulary,
    }
