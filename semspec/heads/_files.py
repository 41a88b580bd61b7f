"""A head's folder, and what it borrows from the target's: strict names, shapes and types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semspec.engines._lean.folder import read_json, weight_files
from semspec.errors import UserError, first_line

STORED = (torch.bfloat16, torch.float16, torch.float32)
Layout = Mapping[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]
"""Name -> shape and the types it may be stored in."""


def head_file(folder: Path, name: str) -> Path:
    """The one safetensors file of a head."""
    for known in (folder / name, folder / "model.safetensors"):
        if known.exists():
            return known
    raise UserError(
        f"no {name} in {folder}: pickled heads (.bin, .pt) are never read; convert it once"
        " (huggingface.co/spaces/safetensors/convert does), or take one published as safetensors"
    )


def names_in(file: Path) -> set[str]:
    """The names of a file's tensors."""
    try:
        with safe_open(file, framework="pt") as opened:
            return set(opened.keys())
    except (SafetensorError, OSError) as error:
        raise _broken(file, error) from error


def read_head(file: Path, layout: Layout) -> dict[str, Tensor]:
    """Exactly the tensors of the layout."""
    there = names_in(file)
    if there != set(layout):
        missing = ", ".join(sorted(set(layout) - there)[:5]) or "none"
        extra = ", ".join(sorted(there - set(layout))[:5]) or "none"
        raise UserError(
            f"{file} does not fit its config.json: missing tensors: {missing}; unknown ones: {extra}"
        )
    tensors = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name, (shape, types) in layout.items():
                found = tuple(opened.get_slice(name).get_shape())
                if found != shape:
                    raise UserError(
                        f"{name} in {file} has shape {list(found)}, config.json says {list(shape)}"
                    )
                tensors[name] = opened.get_tensor(name)
                if tensors[name].dtype not in types:
                    raise UserError(f"{name} in {file} is {tensors[name].dtype}, not {types[0]}")
    except (SafetensorError, OSError) as error:
        raise _broken(file, error) from error
    return tensors


def number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A size from a head's config.json."""
    value = default if config.get(name) is None else config[name]
    if type(value) is not int or value < 1:
        raise UserError(f"{name}={value!r} in config.json: give a whole number above 0")
    return value


def target_facts(folder: Path) -> tuple[int, int, int]:
    """Layers, width and vocabulary of a target."""
    config = read_json(folder / "config.json")
    layers, width, vocabulary = (
        number(config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    return layers, width, vocabulary


def from_target(folder: Path, name: str, shape: tuple[int, int]) -> Tensor:
    """One matrix of the target, by its name."""
    for file in weight_files(folder):
        if name in names_in(file):
            with safe_open(file, framework="pt") as opened:
                tensor: Tensor = opened.get_tensor(name)
            if tuple(tensor.shape) != shape:
                raise UserError(
                    f"{name} in {folder} has shape {list(tensor.shape)}, the head needs"
                    f" {list(shape)}: it was trained for another target"
                )
            return tensor
    raise UserError(f"{folder} lacks the tensor {name}: the download is incomplete, repeat it")


def _broken(file: Path, error: Exception) -> UserError:
    return UserError(f"broken safetensors ({file}: {first_line(error)}): download the head again")
