"""Kill a command at its n-th change of a folder, start it again, and compare what it leaves.

    with Command("semspec.run") as command:
        survives_kills(command, lambda folder: ["problems=2", f"hydra.run.dir={folder}"], texts, tmp_path)

Modules are imported once, in a process that forks for every start, so a start takes only the time of its work. Modules
that a start imports late are imported before the next fork.

Changes are what a start does to files and folders below one folder: the ``os`` calls in ``CALLS``; opening that creates or
empties a file; writes by Python's own files (``open``, hence ``Path.write_text`` and ``shutil``); and ``renameat2``,
which ``os`` does not have. Calls that change nothing (removing a missing file) do not count, nor does ``fsync``, since a
killed process loses nothing that it wrote before. Other processes, mapped memory and libraries that write files by
themselves are not watched; a file that was never seen being written fails the test (``Ended.unseen``).

``SEMSPEC_DEEP=1`` tests every change, and the middle of every write. Killing a start at each of them would take as many
starts. But a killed process leaves its files exactly as they are at that moment. So one start copies the folder before
every change and in the middle of every write, and for each copy another start continues in its place. (For a file that is
written under a temporary name and then renamed: before it is created, half written, and before the rename.) Every run
also does a few real kills (SIGKILL).
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.deep import DEEP

WRITES = ("write", "pwrite", "sendfile")  # calls that can be interrupted halfway
CALLS = (
    *WRITES,
    *("writev", "pwritev", "copy_file_range", "ftruncate", "truncate", "replace", "rename"),
    *("unlink", "remove", "rmdir", "mkdir", "link", "symlink"),
)
TEMPORARY = ".*.tmp"  # names of unfinished files
LONGEST = 300  # seconds a start may take
HALFWAY = "-halfway"  # suffix of copies made in the middle of a write
Arguments = Sequence[str]
"""A command line, or several that are given one after the other."""


@dataclass(frozen=True)
class Ended:
    """How a start ended: its exit code (negative: the signal), its changes, and its output."""

    code: int
    calls: list[str]
    said: str
    unseen: list[str]  # files present at the end that it was never seen writing


class Command:
    """A process that runs a module's ``main()``, which reads ``sys.argv``, in forks; a context manager."""

    def __init__(
        self, module: str = "", *preloaded: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kill_at", *filter(None, [module, *preloaded])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **(env or {}),
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            },
        )

    def run(
        self,
        arguments: Arguments | Sequence[Arguments],
        root: Path,
        fatal: int = -1,
        halfway: bool = False,
        copies: Path | None = None,
        module: str = "",
    ) -> Ended:
        """Start it; kill it before its change number ``fatal`` below ``root``, or halfway through that change.

        Several command lines run one after the other until one fails. With ``copies`` the folder is copied there before
        every change, in the middle of every write, and at the end.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        root.mkdir(parents=True, exist_ok=True)
        lines = [arguments] if all(isinstance(a, str) for a in arguments) else arguments
        job = {"module": module or self._module, "lines": [list(line) for line in lines]}
        job |= {"root": str(root), "fatal": fatal, "halfway": halfway, "copies": str(copies or "")}
        return self._ask(job)

    def warm_up(self, lines: Sequence[Arguments], root: Path, module: str = "") -> Ended:
        """Start it in the forking process itself, so that every fork has what it reads once.

        Not for commands that compute: a fork of a process in which torch has computed may wait for its threads forever.
        """
        return self._ask(
            {"module": module or self._module, "lines": [*map(list, lines)], "root": str(root)}
        )

    def _ask(self, job: dict[str, Any]) -> Ended:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def survives_kills(
    command: Command,
    arguments: Callable[[Path], Arguments | Sequence[Arguments]],
    left: Callable[[Path], Any],
    root: Path,
    points: int = 3,
    *,
    module: str = "",
    before: Callable[[Path], object] = lambda folder: None,
    refused: Callable[[str], bool] = lambda said: False,
    unseen: Callable[[str], bool] = lambda name: False,
    every: bool = True,
) -> None:
    """Assert that a command that is killed and started again leaves the same as an unbroken one.

    ``left`` reads a folder's result; ``before`` fills the folder before the first start. ``points`` is the number of changes
    chosen for real kills. ``refused`` accepts the output of a second start that refuses to run, provided the result is
    the same; ``unseen`` accepts names of files that other processes write. Without ``every`` there are only the real
    kills, even in a deep run.
    """
    folder, copies = root / "work", root / "copies"
    every = every and DEEP
    before(folder)

    def start(fatal: int = -1, halfway: bool = False, copies: Path | None = None) -> Ended:
        return command.run(arguments(folder), folder, fatal, halfway, copies, module)

    def goes_on(at: str) -> None:
        resumed = start()
        assert resumed.code == 0 or refused(resumed.said), f"{at}: {resumed.said}"
        assert left(folder) == expected, at
        assert not temporary(folder), f"{at}: {temporary(folder)}"
        shutil.rmtree(folder)

    unbroken = start(copies=copies if every else None)
    assert unbroken.code == 0, unbroken.said
    unknown = [name for name in unbroken.unseen if not unseen(name)]
    assert not unknown, f"written in a way that kills do not know: {unknown}"
    assert not temporary(folder), temporary(folder)
    expected, last = left(folder), len(unbroken.calls) - 1
    shutil.rmtree(folder)

    chosen = {last * n // (points - 1) for n in range(points)} if points > 1 else {last // 2}
    for place, fatal in enumerate(sorted(chosen)):
        name = unbroken.calls[fatal]
        halfway = name in WRITES and place % 2 == 0
        at = f"killed at change {fatal} ({name}), halfway: {halfway}"
        before(folder)
        killed = start(fatal, halfway)
        assert killed.code == -signal.SIGKILL, f"{at}: {killed.said}"
        goes_on(at)
    for copy in sorted(copies.iterdir()) if every else ():
        copy.rename(folder)
        goes_on(f"killed at {copy.name}")


def temporary(folder: Path) -> list[str]:
    """List the temporary files that a killed start has left."""
    patterns = (".*.tmp", ".*.old", ".semspec-*")
    found = [path for pattern in patterns for path in folder.rglob(pattern)]
    return sorted(str(path.relative_to(folder)) for path in found)


# ---- in the process that is killed ----------------------------------------------------------------


def _place(target: Any, dir_fd: int | None = None) -> str:
    """Return the absolute path of a descriptor or a path, without resolving links."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115
    path = os.fsdecode(target)
    if dir_fd is not None:
        path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)  # noqa: PTH115, PTH118
    return os.path.abspath(path)  # noqa: PTH100


class _Watch:
    """Counts the changes below a folder; kills this process at the fatal one, or copies the folder at each."""

    def __init__(self, root: str, fatal: int, halfway: bool, copies: str) -> None:
        self.root, self.fatal, self.halfway = root, fatal, halfway
        self.copies = Path(copies) if copies else None
        self.calls: list[str] = []
        self.written: set[tuple[int, int]] = set()  # files seen being written: device, inode
        self._here = threading.local()  # off: this thread is copying, which is not a change
        self._turn = threading.RLock()  # held by a change, so that none happens during a copy
        self._begun = set[str]()  # unfinished files already copied half written
        self._open, self._pwrite, self._close = os.open, os.pwrite, os.close

    def begin(self) -> None:
        """Replace the functions by watched ones."""
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name), name))
        os.open = self._opened(os.open)
        builtins.open = io.open = self._python_file(io.open)  # type: ignore[assignment]
        sys.addaudithook(self._hear)

    def _below(self, path: str) -> bool:
        return path.startswith(f"{self.root}/")

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        self._here.off = True
        try:
            yield
        finally:
            self._here.off = False

    @property
    def _off(self) -> bool:
        return getattr(self._here, "off", False)

    def change(self, name: str, half: tuple[str, int, bytes] | None = None) -> None:
        """Count a change about to happen; ``half``: a file, an offset, and the first half of what will be written."""
        if len(self.calls) == self.fatal:
            if self.halfway and half:
                self._put(Path(half[0]), *half[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        if self.copies:
            self._copy_states(self.copies / f"{len(self.calls):04d}-{name}", half)
        self.calls.append(name)

    def _copy_states(self, to: Path, half: tuple[str, int, bytes] | None) -> None:
        """Copy the folder as it is before a change, and as it is in the middle of it."""
        unfinished = half is not None and Path(half[0]).match(TEMPORARY)
        if half is None or not unfinished:
            self._copy(to)
        if (
            half
            and half[2]
            and Path(half[0]).exists()
            and not (unfinished and half[0] in self._begun)
        ):
            self._begun.add(half[0])
            self._copy(middle := to.with_name(to.name + HALFWAY))
            self._put(middle / os.path.relpath(half[0], self.root), *half[1:])

    def end(self) -> list[str]:
        """Treat the end as a change; return the files that were never seen being written."""
        if self.copies:
            self._copy(self.copies / f"{len(self.calls):04d}-end")
        files = [path for path in Path(self.root).rglob("*") if path.is_file()]
        unseen = [f for f in files if (f.stat().st_dev, f.stat().st_ino) not in self.written]
        return sorted(str(file.relative_to(self.root)) for file in unseen)

    def _copy(self, to: Path) -> None:
        with self._unwatched():
            shutil.copytree(self.root, to, symlinks=True)

    def _put(self, path: Path, at: int, data: bytes) -> None:
        descriptor = self._open(path, os.O_WRONLY)
        self._pwrite(descriptor, data, at)
        self._close(descriptor)

    def _saw(self, descriptor: int) -> None:
        told = os.fstat(descriptor)
        self.written.add((told.st_dev, told.st_ino))

    def _hear(self, event: str, arguments: Any) -> None:
        if event == "ctypes.dlsym" and arguments[1] == "renameat2" and not self._off:
            self.change("renameat2")

    def _counted(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._off or not self._changes(name, args, options):
                return real(*args, **options)
            with self._turn:
                return changed(*args, **options)

        def changed(*args: Any, **options: Any) -> Any:
            self.change(name, _half(name, args))
            if name in ("replace", "rename", "unlink", "remove"):
                self._begun.discard(
                    _place(args[0], options.get("dir_fd") or options.get("src_dir_fd"))
                )
            if name in ("write", "pwrite", "writev", "pwritev", "sendfile"):
                self._saw(args[0])
            return real(*args, **options)

        return call

    def _changes(self, name: str, args: Any, options: dict[str, Any]) -> bool:
        """Return True if a call will change something below the root."""
        if name == "copy_file_range":
            return self._below(_place(args[1]))
        place = _place(args[0], options.get("dir_fd") or options.get("src_dir_fd"))
        if name in ("replace", "rename", "link", "symlink"):
            other = _place(args[1], options.get("dst_dir_fd"))
            return self._below(place) or self._below(other)
        if not self._below(place):
            return False
        if name in ("unlink", "remove", "rmdir", "mkdir"):
            return os.path.lexists(place) != (name == "mkdir")
        if name in ("ftruncate", "truncate"):
            return os.stat(args[0]).st_size != args[1]  # noqa: PTH116
        return True

    def _opened(self, real: Callable[..., int]) -> Callable[..., int]:
        """Wrap ``os.open``: it is a change if it creates or empties a file."""

        def call(
            path: Any, flags: int, *args: Any, dir_fd: int | None = None, **options: Any
        ) -> int:
            if self._off or not flags & (os.O_CREAT | os.O_TRUNC):
                return real(path, flags, *args, dir_fd=dir_fd, **options)
            place = _place(path, dir_fd)
            if not self._below(place):
                return real(path, flags, *args, dir_fd=dir_fd, **options)
            with self._turn:
                there = os.path.lexists(place)
                emptied = there and flags & os.O_TRUNC and Path(place).stat().st_size
                if not there or emptied:
                    self.change("open")
                descriptor = real(path, flags, *args, dir_fd=dir_fd, **options)
                self._saw(descriptor)
            return descriptor

        return call

    def _python_file(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``open``: below the root, make files write through ``os``, which Python's own files do not."""

        def call(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            given = (file, mode, buffering, encoding, errors, newline, closefd, opener)
            if self._off or not set(mode) & set("wax+") or not self._below(_place(file)):
                return real(*given)
            raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener or _by_os)
            if buffering == 0:
                return raw
            kind: Any = io.BufferedRandom if "+" in mode else io.BufferedWriter
            buffered = kind(raw) if buffering < 2 else kind(raw, buffering)
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

        return call


class _Raw(io.FileIO):
    """A file whose bytes go through ``os.write``."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)


def _by_os(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)


def _half(name: str, args: Any) -> tuple[str, int, bytes] | None:
    """Return the file, the offset and the first half of what a call will write."""
    if name not in WRITES:
        return None
    descriptor, place = args[0], _place(args[0])
    if name == "sendfile":
        _, source, start, count = args
        data = os.pread(source, min(count, os.fstat(source).st_size - start), start)
    else:
        data = bytes(args[1])
    at = args[2] if name == "pwrite" else os.lseek(descriptor, 0, os.SEEK_CUR)
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
        at = os.fstat(descriptor).st_size
    return place, at, data[: len(data) // 2]


def _start(job: dict[str, Any], log: Path) -> int:
    """Run one start in a fork; return its exit code. Its output goes to the log, its calls to a file beside it."""
    module = importlib.import_module(job["module"])
    loaded = set(sys.modules)
    gc.freeze()  # a garbage collection would copy all of the fork's memory pages
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code, unseen = 1, list[str]()
    watch = _Watch(job["root"], job["fatal"], job["halfway"], job["copies"])
    try:
        _say_to(log)
        signal.alarm(LONGEST)
        watch.begin()
        code = _ended(module, job["lines"])
        unseen = watch.end()
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        late = sorted(set(sys.modules) - loaded)
        told = {"calls": watch.calls, "unseen": unseen, "late": late}
        log.with_suffix(".json").write_text(json.dumps(told))
        os._exit(code)


def _warm_up(job: dict[str, Any], log: Path) -> int:
    """Run one start in this process; return its exit code."""
    streams = [os.dup(stream) for stream in (1, 2)]
    _say_to(log)
    try:
        return _ended(importlib.import_module(job["module"]), job["lines"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, kept in zip((1, 2), streams, strict=True):
            os.dup2(kept, stream)
            os.close(kept)


def _say_to(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)


def _ended(module: Any, lines: Sequence[Arguments]) -> int:
    """Run the command lines until one fails; return the last exit code."""
    for line in lines:
        sys.argv = [module.__name__, *line]
        try:
            module.main()
        except SystemExit as ended:
            if ended.code:
                return ended.code if isinstance(ended.code, int) else 1
    return 0


def _serve(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    jobs, sys.stdin = sys.stdin, open(os.devnull)  # noqa: SIM115, PTH123
    for line in jobs:
        job = json.loads(line)
        log = Path(job["root"]).with_suffix(".log")
        listed = log.with_suffix(".json")
        listed.unlink(missing_ok=True)
        code = _start(job, log) if "fatal" in job else _warm_up(job, log)
        told = json.loads(listed.read_text()) if listed.exists() else {"calls": [], "unseen": []}
        for late in told.pop("late", ()):
            if late.partition(".")[0] not in ("__main__", "__mp_main__"):
                with suppress(Exception):  # some can only be imported where they are needed
                    importlib.import_module(late)
        ended = {"code": code, **told, "said": log.read_text(errors="replace")}
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
