"""Read safetensors files strictly: exactly the expected names, shapes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.storage import foreign

LARGEST_HEADER = 2**20  # bytes that name the tensors
Layout = Mapping[str, tuple[tuple[int, ...], "tuple[torch.dtype, ...]"]]
"""Name -> shape (-1: any length) and the types it may be stored in."""


def read_tensor_file(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Read exactly the tensors of ``layout``; raise UserError if one is missing, unknown or not finite."""
    return read_tensor_files([path], layout, {name: name for name in tensor_names(path)})


def read_tensor_files(
    paths: Sequence[Path], layout: Layout, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Read exactly the tensors of ``layout``, spread over files and possibly stored under other names.

    ``names`` maps each tensor in the files to its stored name. Raises UserError if one is missing,
    unknown or not finite.
    """
    place = paths[0] if len(paths) == 1 else paths[0].parent
    if set(names) != set(layout):
        missing = ", ".join(sorted(set(layout) - set(names))) or "none"
        extra = ", ".join(sorted(ascii(names[n][:64])[1:-1] for n in set(names) - set(layout))[:5])
        raise UserError(f"{place}: missing tensors: {missing}; unknown ones: {extra or 'none'}")
    with ExitStack() as stack:
        opened = [stack.enter_context(foreign.open_tensors(p, LARGEST_HEADER)) for p in paths]
        where = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
        tensors = {}
        for name, (shape, types) in layout.items():
            stored = names[name]
            file = where[stored]
            found = file.get_slice(stored).get_shape()
            if not fits(found, shape):
                shown = list(found) if len(found) <= 8 else f"of {len(found)} dimensions"
                raise UserError(f"{place}: {stored} has the shape {shown}, not {list(shape)}")
            tensor = file.get_tensor(stored)
            if tensor.dtype not in types:
                raise UserError(f"{place}: {stored} is {tensor.dtype}, not {types[0]}")
            tensors[name] = tensor
    check_finite(place, tensors)
    return tensors


def tensor_names(path: Path) -> set[str]:
    with foreign.open_tensors(path, LARGEST_HEADER) as file:
        return set(file.keys())


def tensor_shapes(paths: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in the files; raise UserError if two files hold the same tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        with foreign.open_tensors(path, LARGEST_HEADER) as file:
            for name in file.keys():  # noqa: SIM118
                if name in shapes:
                    raise UserError(f"{path.parent} holds {name[:64]!a} twice: {foreign.INTACT}")
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError if a tensor holds NaN or infinite numbers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: {name[:64]} holds numbers that are not finite")


def fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return True if a shape equals the wanted one, where -1 matches any length."""
    same = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(w in (-1, f) for f, w in same)
