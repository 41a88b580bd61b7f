"""Read safetensors files strictly: exactly the expected names, shapes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.storage import foreign

LARGEST_HEADER = 2**20  # bytes that name the tensors
Layout = Mapping[str, tuple[tuple[int, ...], "tuple[torch.dtype, ...]"]]
"""Name -> shape (-1: any length) and the types it may be stored in."""


def read_tensor_file(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Read exactly the tensors of ``layout``; raises UserError if anything is missing, unknown or not finite."""
    with foreign.open_tensors(path, LARGEST_HEADER) as file:
        names = set(file.keys())
        if names != set(layout):
            missing = ", ".join(sorted(set(layout) - names)) or "none"
            extra = ", ".join(sorted(ascii(n[:64])[1:-1] for n in names - set(layout))[:5])
            raise UserError(f"{path}: missing tensors: {missing}; unknown ones: {extra or 'none'}")
        tensors = {}
        for name, (shape, types) in layout.items():
            found = file.get_slice(name).get_shape()
            if not fits(found, shape):
                shown = list(found) if len(found) <= 8 else f"of {len(found)} dimensions"
                raise UserError(f"{path}: {name} has the shape {shown}, not {list(shape)}")
            tensor = file.get_tensor(name)
            if tensor.dtype not in types:
                raise UserError(f"{path}: {name} is {tensor.dtype}, not {types[0]}")
            tensors[name] = tensor
    check_finite(path, tensors)
    return tensors


def tensor_names(path: Path) -> set[str]:
    """Return the names of a file's tensors."""
    with foreign.open_tensors(path, LARGEST_HEADER) as file:
        return set(file.keys())


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError if a tensor holds NaN or infinite numbers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: {name[:64]} holds numbers that are not finite")


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether a shape is the wanted one, in which -1 is any length."""
    same = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(w in (-1, f) for f, w in same)
