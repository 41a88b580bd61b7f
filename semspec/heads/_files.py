"""Read a head's sizes and the tensors it borrows from its target, checking names, shapes and types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.folder import read_json, weight_files
from semspec.storage import foreign
from semspec.storage.tensors import tensor_names


def stored_types() -> tuple[torch.dtype, ...]:
    """Return the types that weights may be stored in."""
    return torch.bfloat16, torch.float16, torch.float32


LARGEST = 1 << 24  # the limit of every size, so that allocations stay small


def number(
    config: Mapping[str, Any], name: str, default: int | None = None, most: int = LARGEST
) -> int:
    """Return a size from a head's config.json; raise UserError if it is not one."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or not 1 <= value <= most:
        raise UserError(
            f"{name}={ascii(value)[:40]} in config.json: give a whole number from 1 to {most}"
        )
    return value


def target_facts(folder: Path) -> tuple[int, int, int]:
    """Return layers, width and vocabulary of a target."""
    config = read_json(folder / "config.json")
    layers, width, vocabulary = (
        number(config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    return layers, width, vocabulary


def last_of_target(folder: Path, shape: tuple[int, int]) -> Tensor:
    """Return the matrix that a target computes its logits with, which a head may borrow."""
    tied = read_json(folder / "config.json").get("tie_word_embeddings") is True
    return from_target(folder, "model.embed_tokens.weight" if tied else "lm_head.weight", shape)


def from_target(folder: Path, name: str, shape: tuple[int, int]) -> Tensor:
    """Return one matrix of the target by name; raise UserError if it is missing or misshapen."""
    for file in weight_files(folder):
        if name in tensor_names(file):
            with foreign.open_tensors(file) as opened:
                tensor: Tensor = opened.get_tensor(name)
            if tuple(tensor.shape) != shape:
                raise UserError(
                    f"{name} in {folder} has shape {list(tensor.shape)}, but the head needs"
                    f" {list(shape)}: it was trained for another target"
                )
            return tensor
    raise UserError(
        f"{folder} lacks the tensor {name}: the download is incomplete, download it again"
    )
