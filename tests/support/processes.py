"""Help for tests that start and interrupt processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# the end of a program that defines ``port``: answers every GET with 200, like a healthy server
HEALTHY = """
import http.server
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""


def hear_interrupts() -> None:
    """Restore SIGINT (for ``preexec_fn``): a test run in the background ignores it, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def marked(variable: str) -> list[int]:
    """Return the running processes with a variable (``NAME=value``) in their initial environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return left(found, 0)


def left(pids: Iterable[int], seconds: float) -> list[int]:
    """Wait until processes have ended; return those still running after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        running = [pid for pid in pids if _runs(pid)]
        if not running or time.monotonic() >= until:
            return running
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def finished(
    command: Sequence[str],
    code: int = 0,
    cwd: Path | None = None,
    more: Mapping[str, str] | None = None,
    seconds: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a command from this checkout; assert that it ends with this exit code.

    ``more`` are additional environment variables, ``seconds`` is the timeout.
    """
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(Path.cwd())} | (more or {})
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
