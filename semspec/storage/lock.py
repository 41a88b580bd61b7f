"""Lock a folder for one process; the kernel releases the lock when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from semspec.errors import UserError

_NAME = ".lock"
_OURS: set[Path] = set()  # a POSIX lock does not stop its own process from locking again

# A POSIX lock (fcntl) rather than flock: it is not inherited, so that a worker that outlives a
# killed run does not keep the folder. Its trap: closing *any* descriptor of the file gives the lock
# up, so that this process must never open a lock file that it holds a second time.


class FolderInUseError(UserError):
    """Another process holds the folder."""


class FolderLostError(UserError):
    """Another process writes in a folder that this one has begun to write in."""


class FolderLock:
    """A lock that is held from creation until ``release``, or until the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        if self._folder in _OURS:
            raise _in_use(folder, str(os.getpid()))
        self._fd = self._locked(0)
        _OURS.add(self._folder)

    def _locked(self, flags: int) -> int:
        """Open and lock the lock file; raises UserError if another process or program holds it."""
        fd = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT | flags, 0o666)
        holder = os.read(fd, 40).decode(errors="replace").strip()
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _in_use(self._folder, holder or "unknown") from None
            raise UserError(
                f"cannot lock {self._folder}: {error.strerror}; "
                "choose a hydra.run.dir on a file system that has locks"
            ) from error
        if holder and not holder.isdigit():
            os.close(fd)
            raise UserError(
                f"{self._folder / _NAME} was not written by semspec; choose another hydra.run.dir"
            )
        with contextlib.suppress(OSError):  # the holder is only for the message
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def check(self) -> None:
        """Raise FolderLostError if another process holds the folder by now.

        This happens when somebody deletes the lock file. If it is only missing, it is made again.
        """
        own = os.fstat(self._fd)
        try:
            there = (self._folder / _NAME).stat()
        except FileNotFoundError:
            try:
                fd = self._locked(os.O_EXCL)
            except (FileExistsError, FolderInUseError):
                raise lost(self._folder) from None
            os.close(self._fd)
            self._fd = fd
            return
        if not os.path.samestat(own, there):
            raise lost(self._folder)

    def release(self) -> None:
        if self._folder in _OURS:
            _OURS.discard(self._folder)
            os.close(self._fd)


def lost(place: Path) -> FolderLostError:
    """Return the error for a process that must stop writing because another one writes there, too."""
    return FolderLostError(
        f"{place} was changed by another process while this one wrote in it: this one stops; wait"
        " for the other, then give the same command again"
    )


def _in_use(folder: Path, holder: str) -> FolderInUseError:
    way = "wait for it, stop it, or choose another hydra.run.dir"
    return FolderInUseError(f"{folder} is in use by process {holder}; {way}")


def is_locked(folder: Path) -> bool:
    """Return True if a living process holds the folder."""
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
