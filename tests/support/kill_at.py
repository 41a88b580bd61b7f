"""Kills a command at its n-th change of a folder, lets it go on, and compares what it leaves.

    with Command("semspec.run") as command:
        survives_kills(command, lambda folder: ["problems=2", f"hydra.run.dir={folder}"], texts, tmp_path)

The module is imported once, in a process of its own that forks for every start, so that a start costs
what its work costs. Changes are the calls of ``os`` that ``CALLS`` names, on files below the folder.
``SEMSPEC_DEEP=1`` kills at every one of them, else at a few that are spread over the run.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.deep import DEEP

CALLS = ("write", "fsync", "ftruncate", "replace", "rename", "unlink")


@dataclass(frozen=True)
class Ended:
    """How a start ended: its exit code (negative: the signal), its changes, and what it said."""

    code: int
    calls: list[str]
    said: str


class Command:
    """A module with a ``main()`` that reads ``sys.argv``; a context manager."""

    def __init__(self, module: str, *preloaded: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kill_at", module, *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )

    def run(
        self, arguments: Sequence[str], root: Path, fatal: int = -1, halfway: bool = False
    ) -> Ended:
        """Start it; kill it before its change number ``fatal`` below ``root``, or in the midst of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        root.mkdir(parents=True, exist_ok=True)
        job = {"arguments": list(arguments), "root": str(root), "fatal": fatal, "halfway": halfway}
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
    arguments: Callable[[Path], Sequence[str]],
    left: Callable[[Path], Any],
    root: Path,
    points: int = 3,
) -> None:
    """Assert that a command which is killed and started again leaves what an unbroken one does.

    ``left`` reads a folder. ``points`` is how many changes are chosen where not all are.
    """
    whole = root / "whole"
    unbroken = command.run(arguments(whole), whole)
    assert unbroken.code == 0, unbroken.said
    expected, last = left(whole), len(unbroken.calls) - 1
    chosen = range(last + 1) if DEEP else sorted({last * n // (points - 1) for n in range(points)})
    for place, fatal in enumerate(chosen):
        name = unbroken.calls[fatal]
        ways = (False, True) if DEEP and name == "write" else (name == "write" and place % 2 == 0,)
        for halfway in ways:
            at = f"killed at change {fatal} ({name}), halfway: {halfway}"
            folder = root / f"{fatal}-{halfway}"
            killed = command.run(arguments(folder), folder, fatal, halfway)
            assert killed.code == -signal.SIGKILL, f"{at}: {killed.said}"
            resumed = command.run(arguments(folder), folder)
            assert resumed.code == 0, f"{at}: {resumed.said}"
            assert left(folder) == expected, at
            assert not [path.name for path in folder.rglob(".*.tmp")], at


def _below(root: str, target: Any) -> bool:
    """Return True if a call changes something below the root; ``target`` is its first argument."""
    path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target  # noqa: PTH115
    return os.path.abspath(path).startswith(f"{root}/")  # noqa: PTH100 (links stay as they are)


def _watch(root: str, fatal: int, halfway: bool, calls: list[str]) -> None:
    """Replace the calls of ``os`` by ones that are counted, and kill this process at the fatal one."""

    def counted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if _below(root, args[0]):
                if len(calls) == fatal:
                    if halfway:
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                calls.append(name)
            return real(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name), name))


def _start(module: Any, job: dict[str, Any], log: Path) -> int:
    """Run one start in a fork; return its wait status. The log holds its calls and what it said."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code, calls = 1, list[str]()
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(fd, stream)
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
        sys.argv = [module.__name__, *job["arguments"]]
        _watch(job["root"], job["fatal"], job["halfway"], calls)
        module.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        log.with_suffix(".calls").write_text(json.dumps(calls))
        os._exit(code)


def _serve(names: Sequence[str]) -> None:
    module, *_ = [importlib.import_module(name) for name in names]
    for line in sys.stdin:
        job = json.loads(line)
        log = Path(job["root"]).with_suffix(".log")
        log.with_suffix(".calls").unlink(missing_ok=True)
        code = os.waitstatus_to_exitcode(_start(module, job, log))
        listed = log.with_suffix(".calls")
        calls = json.loads(listed.read_text()) if listed.exists() else []
        print(json.dumps({"code": code, "calls": calls, "said": log.read_text()}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
