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

# A POSIX lock (fcntl), not flock, because it is not inherited: a worker that outlives a killed run
# does not keep the folder locked. The pitfall: closing *any* descriptor of the file releases the
# lock, so this process must never open a lock file that it already holds.


class FolderInUseError(UserError):
    """Another process holds the folder."""


class FolderLostError(UserError):
    """Another process writes to a folder that this process has begun to write to."""


class FolderLock:
    """A lock held from creation until ``release`` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        if self._folder in _OURS:
            raise _in_use(folder, str(os.getpid()))
        self._fd = self._locked(0)
        _OURS.add(self._folder)

    def _locked(self, flags: int) -> int:
        """Open and lock the lock file; raise UserError if another process holds it or semspec did not write it."""
        fd = os.open(self._folder / _NAME, os.O_RDWR | os.O_CREAT | flags, 0o666)
        holder = os.read(fd, 40).decode(errors="replace").strip()
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _in_use(self._folder, holder or "unknown") from None
            raise UserError(
                f"cannot lock {self._folder}: {error.strerror}; choose a hydra.run.dir on a"
                " file system with locks"
            ) from error
        if holder and not holder.isdigit():
            os.close(fd)
            raise UserError(
                f"{self._folder / _NAME} was not written by semspec; choose another hydra.run.dir"
            )
        with contextlib.suppress(OSError):  # the process id is only for the error message
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def check(self) -> None:
        """Raise FolderLostError if another process holds the folder by now.

        That can happen after somebody deletes the lock file. If it is only missing, create it again.
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
    """Return the error that stops this process because another one writes to the same place."""
    return FolderLostError(
        f"{place} was changed by another process while this one was writing to it, so this"
        " one stops: wait for the other, then repeat the same command"
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
