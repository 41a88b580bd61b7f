"""Write files that survive a kill at any moment: replace them as a whole, or append whole lines."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.storage.lock import lost

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def os_errors_as_user_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names the folder and a way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            what, way = (
                "no space left in",
                "free space and repeat the same command to resume",
            )
        elif error.errno in _FORBIDDEN:
            what, way = "cannot write in", "make it writable or choose another hydra.run.dir"
        else:
            reason += f" ({error.filename or 'no file named'})"
            what, way = "cannot use", "repair it or choose another hydra.run.dir"
        raise UserError(f"{what} {folder}: {reason}; {way}") from error


def _convert(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "item"):  # a numpy or torch scalar
        return value.item()
    raise TypeError(f"not JSON: {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return value


def dumps(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader accepts: ASCII (models emit lone surrogates), null for NaN and infinity."""
    separators = (",", ": ") if indent else (",", ":")
    strict = partial(json.dumps, allow_nan=False, indent=indent, separators=separators)
    try:
        return strict(value, default=_convert)
    except ValueError:  # NaN or infinity: rare, so the common case stays one fast call
        return strict(_finite(json.loads(json.dumps(value, default=_convert))))


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # usually one write; a full disk takes only a part
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:  # some network file systems cannot; the rename is atomic anyway
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[int]:
    """Yield a file descriptor whose content replaces ``path`` at the end; on an error ``path`` is unchanged."""
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name: overwrites a killed write
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        try:
            yield fd
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file atomically: completely or not at all."""
    with replacing(path, durable) as fd:
        write_all(fd, data)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    write_bytes(path, (dumps(value, indent=2) + "\n").encode(), durable)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file atomically; lone surrogates become question marks."""
    write_bytes(path, text.encode("utf-8", "replace"), durable)


def read_json(path: Path) -> Any | None:
    """Read JSON written by semspec, None if it is missing or invalid; for others' files see ``foreign``."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that end in a newline; the rest is torn or still being written."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a JSON object; return None if it is not one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class LineFile:
    """A file of JSON lines to which only this process appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = os.fstat(self._fd).st_size

    def append(self, value: Any) -> None:
        """Append one line in one write; if that fails, remove the part that was written.

        Raises FolderLostError if another process changed the file, since not every file system has locks.
        """
        data = (dumps(value) + "\n").encode()
        self._check()
        try:
            write_all(self._fd, data)
        except BaseException:  # an interrupt may also come between the parts of a write
            with contextlib.suppress(OSError):  # otherwise the next start removes the torn line
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _check(self) -> None:
        own = os.fstat(self._fd)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            raise lost(self.path) from None
        if own.st_size != self._size or not os.path.samestat(own, there):
            raise lost(self.path)

    def sync(self) -> None:
        os.fsync(self._fd)

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def cut(path: Path, size: int) -> None:
    """Shorten a file in place, which needs no disk space; after a kill it has its old or its new length."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def cut_torn_line(path: Path) -> None:
    """Remove an unfinished last line, and then a last line that is not a JSON object."""
    if not path.exists():
        return
    size = good = 0
    last = b""
    for line in whole_lines(path):
        good, size, last = size, size + len(line), line
    if last and parse(last) is None:  # a machine crash may leave zeros before the newline
        size = good
    if size != path.stat().st_size:
        cut(path, size)


def keep_lines(path: Path, ids: set[str]) -> None:
    """Drop every line whose ``id`` is not in ``ids``, and every unreadable line."""
    end = size = 0  # bytes: of the kept lines before the first dropped one; of all whole lines
    later = dropped = False  # later: a kept line follows a dropped one
    for line in whole_lines(path):
        size += len(line)
        if _kept(line, ids):
            later = later or dropped
            end = end if dropped else size
        else:
            dropped = True
    if later:
        with replacing(path) as fd:
            for line in whole_lines(path):
                if _kept(line, ids):
                    write_all(fd, line)
    elif path.exists() and path.stat().st_size != end:
        cut(path, end)


def _kept(line: bytes, ids: set[str]) -> bool:
    value = parse(line)
    return value is not None and value.get("id") in ids
