"""Map the arrays of a safetensors file; only the header is read, and it is checked thoroughly."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from semspec.errors import UserError, first_line
from semspec.storage import foreign
from semspec.storage.files import write_bytes
from semspec.storage.tensors import fits

LARGEST_HEADER = 2**16  # bytes; a shard's header names a few arrays
_CODES = {"U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}
TYPES: Mapping[str, np.dtype[Any]] = {name: np.dtype(code) for name, code in _CODES.items()}
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> type and shape; -1 is any length."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapped file and the places of its arrays."""

    path: Path
    map: mmap.mmap
    places: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], int]]  # type, shape, first byte

    def array(self, name: str) -> NDArray[Any]:
        """Return a read-only array, whose pages are loaded on access."""
        dtype, shape, start = self.places[name]
        count = math.prod(shape)
        found = np.frombuffer(self.map, dtype, count, start) if count else np.zeros(0, dtype)
        return found.reshape(shape)

    def start(self, name: str) -> int:
        return self.places[name][2]


def open_arrays(path: Path, wanted: Shapes) -> Mapped:
    """Map a file with exactly these arrays; raise UserError for any other file."""
    assert sys.byteorder == "little", "files are little endian"
    try:
        places = _places(path, wanted)
        with foreign.open_plain(path) as file:
            opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: use an intact copy of the datastore") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged or cut off ({first_line(error)[:200]}): use an intact copy of the"
            " datastore"
        ) from error
    return Mapped(path, opened, places)


def _places(path: Path, wanted: Shapes) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    stored, base, size = foreign.read_places(path, LARGEST_HEADER)
    if stored.keys() != wanted.keys():
        raise ValueError(f"it holds {ascii(sorted(stored))[:80]}, not {sorted(wanted)}")
    places, taken = {}, base
    for name, (kind, shape) in wanted.items():
        own, found, start, length = stored[name]
        if own != kind or not fits(found, shape):
            raise ValueError(f"{name} is {own[:8]} {found[:4]}, not {kind} {list(shape)}")
        if length != math.prod(found) * TYPES[kind].itemsize:
            raise ValueError(f"{name} has {length:,} bytes, which is not its shape's size")
        if start % TYPES[kind].itemsize:  # numpy could read it, but its buffers could not
            raise ValueError(f"{name} is not aligned")
        places[name] = (TYPES[kind], tuple(found), start)
        taken += length
    if taken != size:
        raise ValueError(f"it has {size:,} bytes, not {taken:,}")
    return places


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the file atomically."""
    write_bytes(path, save({name: np.ascontiguousarray(a) for name, a in arrays.items()}))
