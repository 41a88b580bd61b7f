"""Read untrusted files: only regular files of bounded size, parsed strictly, with one-line errors.

Everything that comes from elsewhere (a model's folder, an artifact, a data set's options) is read by
one of three functions: ``read_text``, ``read_json`` and ``open_tensors``.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from semspec.errors import UserError, first_line

LARGEST_TEXT = 16 * 2**20  # bytes of a text or of JSON
LARGEST_HEADER = 16 * 2**20  # bytes of a safetensors header: some 100,000 tensors
LARGEST_TOKEN = 1 << 24  # token ids and vocabulary sizes are below this
INTACT = "use an intact copy"
SETTLED = 2 * 10**9  # ns after which another write is sure to change the file's time
_SHOWN = 40  # characters of a value shown in an error


Place = tuple[str, list[int], int, int]
"""Type, shape, first byte and size of a tensor in its file."""


class MissingFileError(UserError):
    """Raised for a file that does not exist."""


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file; raise OSError for others, because opening a pipe would wait for a writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("it is not a regular file")
    return os.fdopen(fd, "rb")


def read_bytes(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Read a whole file; raise OSError as ``open_plain`` does, ValueError if it is too large."""
    with open_plain(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it is larger than {largest:,} bytes")
    return data


def read_text(path: Path, largest: int = LARGEST_TEXT, way_out: str = INTACT) -> str:
    """Read a UTF-8 text file; raise UserError with the way out if that fails."""
    with _refused(path, way_out):
        return read_bytes(path, largest).decode("utf-8")


def read_json(
    path: Path, largest: int = LARGEST_TEXT, way_out: str = INTACT, finite: bool = True
) -> Any:
    """Read JSON (``finite``: refuse NaN and infinities); raise UserError with the way out if that fails."""
    with _refused(path, way_out):
        return parse(read_bytes(path, largest), finite)


def read_object(
    path: Path, largest: int = LARGEST_TEXT, way_out: str = INTACT, finite: bool = True
) -> dict[str, Any]:
    """Read a JSON object as ``read_json`` does; raise UserError if it is not an object."""
    value = read_json(path, largest, way_out, finite)
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object: {way_out}")
    return value


def parse(data: bytes, finite: bool = True) -> Any:
    """Parse JSON in UTF-8.

    Raises ValueError if it is not JSON, repeats a name in one object, is nested too deeply or, with
    ``finite``, holds a number that is not finite.
    """
    strict: dict[str, Any] = {"parse_constant": _refuse_constant, "parse_float": _finite}
    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_once, **(strict if finite else {}))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def open_tensors(
    path: Path, largest_header: int = LARGEST_HEADER, way_out: str = INTACT
) -> Iterator[Any]:
    """Open a safetensors file; raise UserError with the way out if anything is wrong with it.

    The checks come first because the library itself would block on a pipe and accept a header of 100 MB.
    """
    with _refused(path, way_out):
        with open_plain(path) as file:
            _header_length(file, largest_header)
        with safe_open(path, framework="pt") as opened:
            yield opened


def _header_length(file: BufferedReader, largest: int) -> int:
    length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
    if not 2 <= length <= min(largest, size - 8):
        raise ValueError(f"its header claims {length:,} bytes")
    return length


def tensor_places(path: Path) -> dict[str, Place]:
    """Return the place of every tensor in the file; raise UserError as ``open_tensors`` does."""
    with _refused(path, INTACT):
        return read_places(path)[0]


def read_places(path: Path, largest: int = LARGEST_HEADER) -> tuple[dict[str, Place], int, int]:
    """Return the places of a file's tensors, the offset at which tensor data begin, and the file's size.

    Raises OSError or ValueError if there is no valid header.
    """
    with open_plain(path) as file:
        length = _header_length(file, largest)
        header, size = parse(file.read(length)), os.fstat(file.fileno()).st_size
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    places, base = {}, 8 + length
    for name, entry in header.items():
        try:
            start, end = entry["data_offsets"]
            numbers = [*entry["shape"], start, end]
        except (TypeError, KeyError, ValueError):
            raise ValueError(f"{name[:_SHOWN]!a} has no sizes") from None
        if any(type(n) is not int or not 0 <= n < 1 << 48 for n in numbers):
            raise ValueError(f"{name[:_SHOWN]!a} has sizes that are none")
        if not start <= end <= size - base:
            raise ValueError(f"{name[:_SHOWN]!a} ends behind the file's end")
        places[name] = (str(entry.get("dtype")), entry["shape"], base + start, end - start)
    return places, base, size


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes with every write; None just after a write, when another could go unnoticed."""
    state = path.stat()
    if time.time_ns() - state.st_mtime_ns < SETTLED:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def token_ids(value: object, where: str) -> frozenset[int]:
    """Return token ids from None, one id or a list; raise UserError for anything else."""
    found: Sequence[Any] = value if isinstance(value, list) else [] if value is None else [value]
    for token in found:
        if type(token) is not int or not 0 <= token < LARGEST_TOKEN:
            raise UserError(
                f"{where} gives {ascii(token)[:_SHOWN]} as a token's id, which is not"
                f" valid: {INTACT}"
            )
    return frozenset(found)


@contextmanager
def _refused(path: Path, way_out: str) -> Iterator[None]:
    """Turn any error from reading a file into a one-line UserError."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(f"{path.parent} has no {path.name}: {way_out}") from error
    except (OSError, SafetensorError, ValueError, TypeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else None
        raise UserError(f"{path} cannot be read ({reason or first_line(error)}): {way_out}") from error  # fmt: skip


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return made


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_SHOWN]} is no finite number")
    return value
