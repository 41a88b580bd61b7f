"""Medusa heads (Cai et al. 2024, section 2.1): several tokens from one last hidden state.

Head k predicts token i + k + 2 from the state of position i, whatever the tokens in between:
    p_k = softmax(W2_k (h + SiLU(W1_k h + b_k)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.errors import UserError
from semspec.heads._files import last_of_target, number, stored_types, target_facts
from semspec.heads.published import MedusaNaming, medusa_names, ready, tensor_files
from semspec.models.folder import read_json
from semspec.storage.tensors import Layout, read_tensor_files, tensor_shapes

FILE = "medusa_lm_head.safetensors"
MOST = 64  # heads, and blocks in each


@dataclass(frozen=True, slots=True)
class Shape:
    """``blocks`` residual blocks in each head, and the target's width and vocabulary."""

    heads: int
    blocks: int
    width: int
    vocabulary: int
    own_last: bool = True  # False: all heads use the target's last matrix, as in Medusa's version 2

    def layout(self) -> Layout:
        """Return every tensor of a checkpoint: HEAD.BLOCK.linear.weight, then the last matrix."""
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(self.heads):
            for block in range(self.blocks):
                shapes[f"{head}.{block}.linear.weight"] = (self.width, self.width)
                shapes[f"{head}.{block}.linear.bias"] = (self.width,)
            if self.own_last:
                shapes[f"{head}.{self.blocks}.weight"] = (self.vocabulary, self.width)
        return {name: (shape, stored_types()) for name, shape in shapes.items()}


class Medusa:
    """The heads, stacked; differentiable."""

    def __init__(
        self, shape: Shape, tensors: Mapping[str, Tensor], borrowed: Tensor | None = None
    ) -> None:
        """Stack the heads' own tensors; ``borrowed`` is the target's last matrix, for heads without."""
        self.shape = shape

        def stacked(name: str) -> Tensor:
            return torch.stack([tensors[f"{head}.{name}"] for head in range(shape.heads)])

        self.blocks = [
            (stacked(f"{block}.linear.weight").mT, stacked(f"{block}.linear.bias")[:, None])
            for block in range(shape.blocks)
        ]
        self.last = stacked(f"{shape.blocks}.weight").mT if borrowed is None else borrowed.mT

    @classmethod
    def load(cls, folder: Path, target: Path, weights: Callable[[], Path] | None = None) -> Self:
        """Read a checkpoint of heads that belong to this target; raise UserError if it does not fit.

        ``weights`` returns the target's folder once its weights are there; without it, ``target`` has them.
        """
        folder = ready(folder)
        config = read_json(folder / "config.json")
        _, width, vocabulary = target_facts(target)
        files = tensor_files(folder, FILE, "model.safetensors")
        naming = medusa_names(tensor_shapes(files))
        shape = shape_of(config, naming, width, vocabulary)
        tensors = read_checkpoint(files, shape, naming)
        size = (vocabulary, width)
        if weights and not shape.own_last:
            target = weights()
        borrowed = None if shape.own_last else last_of_target(target, size).float()
        with torch.inference_mode():
            floats = {name: tensor.float() for name, tensor in tensors.items()}
            return cls(shape, floats, borrowed)

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


def shape_of(config: Mapping[str, Any], naming: MedusaNaming, width: int, vocabulary: int) -> Shape:
    """Return the shape of heads for a target; raise UserError if the config claims impossible sizes.

    If the config claims fewer heads than the file has, the file is right. The config may also lack the sizes.
    """
    layers = ("medusa_num_layers", "num_hidden_layers" if naming.vllm else "medusa_num_layers")
    many = ("medusa_num_heads", "num_heads" if naming.vllm else "medusa_num_heads")
    if not naming.heads and not any(name in config for name in many):
        raise UserError(
            "neither the file nor its config.json describes Medusa heads: use another"
            " head, or draft=eagle3 for an EAGLE-3 head"
        )
    claimed = [
        number(config, next((n for n in names if n in config), names[0]), found or None, most=MOST)
        for names, found in ((many, naming.heads), (layers, naming.blocks))
    ]
    heads, blocks = max(claimed[0], naming.heads), claimed[1]
    if heads > MOST:
        raise UserError(f"the file has {heads} heads, above the limit of {MOST}: use another")
    own = any(name.count(".") == 2 for name in naming.names)
    return Shape(heads, blocks, width, vocabulary, own)


def read_checkpoint(files: Sequence[Path], shape: Shape, naming: MedusaNaming) -> dict[str, Tensor]:
    """Read the heads' own tensors under Medusa's names; where no block has a bias, it is 0.

    Raises UserError unless they are what ``shape`` implies.
    """
    layout = shape.layout()
    biases = {name for name in layout if name.endswith(".bias")}
    if naming.vllm and not biases & set(naming.names):
        layout = {name: kind for name, kind in layout.items() if name not in biases}
    tensors = read_tensor_files(files, layout, naming.names)
    for name in biases - set(layout):
        weight = tensors[f"{name.removesuffix('.bias')}.weight"]
        tensors[name] = weight.new_zeros(len(weight))
    return tensors


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
