"""Grade a program that a model wrote, in confined processes that run ``_candidate.py``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from semspec.errors import UserError
from semspec.storage.pipes import first_line

CANDIDATE = Path(__file__).with_name("_candidate.py")
MEMORY = 1 << 30  # bytes of address space, for each of the two processes
VERDICT = 4096  # bytes; a verdict has a few hundred


def run_program(
    program: str,
    seconds: float,
    strict: bool = True,
    *,
    entry: str = "",
    given: str = "",
    check: str = "",
) -> str:
    """Return "passed" if the program ran to its end and passed its tests, else what stopped it.

    The tests are Python: ``check``, after the definitions ``given``, which may call the function
    ``entry`` of the program. They run in a separate process, and only that one can report "passed".
    ``strict=False`` sets limits of time, memory and file size only: the program can do what its
    user can, and may then forge the verdict. Raises UserError if this system cannot confine
    programs as ``strict`` demands.
    """
    until = time.monotonic() + seconds
    order = {
        "program": program,
        "entry": entry,
        "given": given,
        "check": check,
        "seconds": int(seconds),
        "memory": MEMORY,
        "strict": strict,
    }
    processes: list[subprocess.Popen[bytes]] = []
    with (
        tempfile.TemporaryDirectory(prefix="semspec-") as folder,
        tempfile.TemporaryFile() as written,
    ):
        written.write(json.dumps(order).encode())
        written.seek(0)
        reading, writing = os.pipe()
        judges, candidates = socket.socketpair()
        try:
            with judges, candidates, os.fdopen(writing, "wb"):
                processes.append(_start(folder, candidates.fileno()))
                processes.append(_start(folder, written.fileno(), writing, judges.fileno()))
            answer = first_line(reading, until, VERDICT)
        finally:
            os.close(reading)
            for process in processes:
                # with its children, if it was not confined; it may have ended already
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if answer is None:
        return f"timed out after {seconds:g} s"
    if not answer:
        return f"died (exit status {processes[-1].returncode})"
    verdict = json.loads(answer)
    if verdict["unconfined"] is not None:
        raise UserError(
            f"this system cannot confine programs ({verdict['unconfined']}), so semspec"
            " runs none: give benchmark.confine=limits to run them with only time and"
            " memory limits"
        )
    return str(verdict["outcome"])


def _start(
    folder: str, stdin: int, stdout: int = subprocess.DEVNULL, *kept: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -I: no environment variables, no packages of the user; -S: only the standard library
        [sys.executable, "-I", "-S", "-B", str(CANDIDATE), str(os.getpid()), *map(str, kept)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
        pass_fds=kept,
    )
