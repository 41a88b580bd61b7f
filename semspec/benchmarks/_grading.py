"""Are two mathematical answers the same? Asked of a process that is killed if it takes too long."""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from semspec.errors import UserError

LIMIT = 10.0  # seconds an answer
STARTING = 120.0  # seconds to import sympy on a busy machine
WORKER = Path(__file__).with_name("_math_worker.py")


class Worker:
    """A process that compares answers, and is started again after it had to be killed."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self.process: subprocess.Popen[bytes] | None = None
        self.buffer = b""
        self.lock = threading.Lock()

    def same(self, gold: str, answer: str) -> bool | None:
        """Whether they mean the same; None where that took longer than the limit."""
        with self.lock:
            process = self._started()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
                process.stdin.flush()
                said = self._line(time.monotonic() + self.limit)
            except BrokenPipeError:
                said = None
            if said is None:  # too long, or it died of its memory limit
                self._stop()
                return None
            return bool(json.loads(said))

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.buffer = b""
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],  # -P: nothing beside the script is importable
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._line(time.monotonic() + STARTING) != b"ready":
            assert self.process.stderr is not None
            self.process.kill()
            told = self.process.stderr.read().decode(errors="replace").strip().splitlines()
            self._stop()
            raise UserError(
                f"cannot grade mathematics ({told[-1] if told else 'no answer'}):"
                " run 'pip install math-verify'"
            )
        return self.process

    def _line(self, until: float) -> bytes | None:
        """The next line, or None where none comes in time or the process has ended."""
        assert self.process is not None and self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            read = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not read:
                return None
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def close(self) -> None:
        with self.lock:
            self._stop()


_WORKER = Worker()
atexit.register(_WORKER.close)


def same_answer(gold: str, answer: str) -> bool | None:
    """Whether ``answer`` means what ``gold`` says; None where nobody can tell in time."""
    return _WORKER.same(gold, answer)
