"""Replace whole folders atomically; never touch a folder that semspec did not write.

A new folder is written beside its place (``.NAME.tmp``), flushed, and then exchanged with the old one by
one system call (``renameat2`` with ``RENAME_EXCHANGE``; Linux, most file systems). If that is not available, the
old one is first renamed to ``.NAME.old``. A kill between the two renames leaves no folder of that name; then
``recover``, which every load and save calls, puts the old one back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from semspec.errors import UserError
from semspec.storage import manifests
from semspec.storage.files import sync_folder
from semspec.storage.manifests import UNFINISHED

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
_UNKNOWN = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}  # kernel or file system cannot exchange
TRIES = 10


def place(folder: Path) -> Path:
    """Resolve the path of a folder to write; raise UserError for a root folder."""
    folder = Path(os.path.realpath(folder))
    if not folder.name:
        raise UserError(f"{folder} cannot be replaced: choose another folder")
    return folder


def check_replaceable(folder: Path, kind: str) -> None:
    """Raise UserError unless the folder is absent, empty, or holds only an artifact of this kind."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder")
    if not any(folder.iterdir()):
        return
    manifest = manifests.read(folder) if manifests.is_ours(folder) else None
    if manifest is None:
        raise UserError(
            f"{folder} contains something that semspec did not write (it has no"
            f" {manifests.NAME} of ours): choose another folder"
        )
    if manifest["kind"] != kind:
        raise UserError(
            f"{folder} contains a {manifest['kind'][:64]}, not a {kind}: choose another folder"
        )
    strays = [name for name in manifests.names(folder) if name not in manifest["files"]]
    if strays:
        raise UserError(
            f"{folder} contains {strays[0][:80]!a}, which is not part of its {kind}: move"
            " it away, or choose another folder"
        )


def stage(folder: Path) -> Path:
    """Create and return the empty folder beside ``folder`` that will replace it."""
    beside = _beside(folder, "tmp")
    discard(beside)
    beside.mkdir(parents=True)
    (beside / UNFINISHED).touch()
    return beside


def finish(beside: Path, folder: Path) -> None:
    """Move a staged folder, whose files are on disk already, into its place; then remove the old folder."""
    (beside / UNFINISHED).unlink()
    sync_folder(beside)
    if not folder.exists() or not any(folder.iterdir()):
        beside.rename(folder)
        sync_folder(folder.parent)
        return
    old = beside
    if not _exchange(beside, folder):
        old = _beside(folder, "old")
        discard(old)
        _rename_twice(beside, folder, old)
    sync_folder(folder.parent)
    discard(old)


def recover(folder: Path) -> None:
    """Restore the old folder if a kill between two renames left it as ``.NAME.old``."""
    if not folder.name or folder.is_dir():
        return
    old = _beside(folder, "old")
    if old.is_dir() and not (old / UNFINISHED).exists() and manifests.is_ours(old):
        old.rename(folder)


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``folder``; it is removed at the end, or after a kill at the next start."""
    beside = stage(folder)
    try:
        yield beside
    finally:
        discard(beside)


def tidy(folder: Path) -> None:
    """Remove what a kill left beside a folder that exists; keep what semspec did not write."""
    recover(folder)
    if folder.is_dir():
        for ending in ("tmp", "old"):
            with contextlib.suppress(UserError):
                discard(_beside(folder, ending))


def discard(folder: Path) -> None:
    """Remove a folder that semspec left beside another; raise UserError if semspec did not write it."""
    if not os.path.lexists(folder):
        return
    ours = folder.is_dir() and not folder.is_symlink()
    if ours and any(folder.iterdir()):
        ours = (folder / UNFINISHED).exists() or manifests.is_ours(folder)
    if not ours:
        raise UserError(f"{folder} is in the way and was not written by semspec: move it away")
    mark = folder / UNFINISHED  # so that a folder half removed by a kill is recognised as ours
    mark.touch()
    for inner in folder.iterdir():
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        elif inner != mark:
            inner.unlink()
    mark.unlink()
    folder.rmdir()


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False if this system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _rename_twice(beside: Path, folder: Path, old: Path) -> None:
    for attempt in range(TRIES):
        folder.rename(old)
        try:
            beside.rename(folder)
        except OSError as error:
            # meanwhile a process that loads the folder put the old one back
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == TRIES - 1:
                raise
        else:
            return
