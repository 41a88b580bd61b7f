"""Compare mathematical answers in a process that is killed if it takes too long."""

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

LIMIT = 10.0  # seconds for one answer
STARTING = 120.0  # seconds to import sympy on a busy machine
WORKER = Path(__file__).with_name("_math_worker.py")


class Worker:
    """A process that compares answers; it is restarted after it had to be killed."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self.process: subprocess.Popen[bytes] | None = None
        self.buffer = b""
        self.lock = threading.Lock()

    def same(self, gold: str, answer: str) -> bool | None:
        """Return True if both answers mean the same, None if comparing took too long."""
        with self.lock:
            process = self._started()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
                process.stdin.flush()
                reply = self._line(time.monotonic() + self.limit)
            except BrokenPipeError:
                reply = None
            if reply is None:  # too slow, or killed by its memory limit
                self._stop()
                return None
            return bool(json.loads(reply))

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.buffer = b""
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],  # -P: modules beside the script cannot be imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._line(time.monotonic() + STARTING) != b"ready":
            assert self.process.stderr is not None
            self.process.kill()
            errors = self.process.stderr.read().decode(errors="replace").strip().splitlines()
            self._stop()
            raise UserError(
                f"cannot grade mathematics ({errors[-1] if errors else 'no answer'}):"
                " run 'pip install math-verify'"
            )
        return self.process

    def _line(self, until: float) -> bytes | None:
        """Return the next line, or None if none comes in time or the process has ended."""
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
    """Return True if ``answer`` means the same as ``gold``, None if comparing took too long."""
    return _WORKER.same(gold, answer)
