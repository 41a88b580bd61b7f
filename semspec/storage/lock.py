"""One process at a time in a folder; the kernel gives a dead process's folder back."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from semspec.errors import UserError

_NAME = ".lock"
_OURS: set[Path] = set()  # a POSIX lock does not keep a process from itself

# A POSIX lock (fcntl) rather than flock: it is not inherited, so that a worker that outlives a
# killed run does not keep the folder. Its trap: closing *any* descriptor of the file gives the lock
# up, so that this process must never open a lock file that it holds a second time.


class FolderInUseError(UserError):
    """Another process holds the folder."""


class FolderLock:
    """Held from creation until ``release``, or until the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        if self._folder in _OURS:
            raise _in_use(folder, str(os.getpid()))
        self._fd = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 20).decode(errors="replace").strip()
            os.close(self._fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _in_use(folder, holder or "unknown") from None
            raise UserError(
                f"cannot lock {folder}: {error.strerror}; "
                "choose a hydra.run.dir on a file system that has locks"
            ) from error
        _OURS.add(self._folder)
        with contextlib.suppress(OSError):  # who it is serves only the message
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._folder in _OURS:
            _OURS.discard(self._folder)
            os.close(self._fd)


def _in_use(folder: Path, holder: str) -> FolderInUseError:
    return FolderInUseError(
        f"{folder} is in use by process {holder}; "
        "wait for it, stop it, or choose another hydra.run.dir"
    )


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the folder."""
    if folder.resolve() in _OURS:
        return True
    try:
        fd = os.open(folder / _NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    finally:
        os.close(fd)
    return False
