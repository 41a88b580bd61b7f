"""Query a script in its own process, which is killed if an answer takes too long and restarted for the next question."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path


class NotStartedError(Exception):
    """The script did not start; the message is the last line of its errors."""


class Worker:
    """A process that answers each line of JSON with one line."""

    def __init__(self, script: Path, starting: float | None = None) -> None:
        self.script = script
        self.starting = starting  # seconds it has to say "ready"; None: it does not say it
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: object, seconds: float | None = None) -> bytes:
        """Return the answer, one line; empty if the process died or took longer than ``seconds``."""
        data = json.dumps(question, default=str).encode() + b"\n"
        with self.lock:
            process, answer = self._started(), b""
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(data)
                    process.stdin.flush()
                    answer = _line(process, seconds)
            finally:
                if not answer:  # too slow or dead, or the caller was interrupted
                    self._stop()
            return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self._stop()  # ended from outside: SGLang, for one, ends all children of its process
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(self.script)],  # -P: no module beside it is importable
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if self.starting is None else subprocess.PIPE,
            )
            if self.starting is not None and _line(self.process, self.starting) != b"ready\n":
                errors = self._stop().decode(errors="replace").strip().splitlines()
                raise NotStartedError(errors[-1] if errors else "no answer")
        return self.process

    def _stop(self) -> bytes:
        """End the process if it is running; return its errors."""
        process, self.process = self.process, None
        if process is None:
            return b""
        process.kill()
        return process.communicate()[1] or b""

    def close(self) -> None:
        with self.lock:
            self._stop()


def _line(process: subprocess.Popen[bytes], seconds: float | None) -> bytes:
    """Return the next line; empty if none comes in time or the process has ended."""
    assert process.stdout is not None
    until = None if seconds is None else time.monotonic() + seconds
    pipe, line = process.stdout.fileno(), b""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN | select.POLLHUP)
    while not line.endswith(b"\n"):
        left = None if until is None else until - time.monotonic()
        if left is not None and (left <= 0 or not waiting.poll(1000 * left)):
            return b""
        read = os.read(pipe, 1 << 20)
        if not read:
            return b""
        line += read
    return line
