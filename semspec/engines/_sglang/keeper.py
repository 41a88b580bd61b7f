"""Run a server, and end it with all its processes when the process that started the keeper is gone.

    python keeper.py SECONDS LOG COMMAND...        standard input: a pipe that only that process holds open

The pipe closes however that process ends, even by ``kill -9``. The server then gets SIGTERM, and SIGKILL after SECONDS.
The keeper is a separate script that imports only the standard library, so it needs hardly any memory. It runs in its own
session, so Ctrl-C does not reach it. If the keeper itself is killed, the kernel kills the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK = 0.2  # seconds between checks of server and parent
PATIENCE = 10.0  # seconds to wait for killed processes to disappear
SUBREAPER, DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG


def control(option: int, value: int) -> None:
    """Call Linux's prctl, if available."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def alone(parent: int) -> bool:
    """Wait at most LOOK seconds; return whether the process that started the keeper is gone."""
    readable, _, _ = select.select([0], [], [], LOOK)
    return (bool(readable) and not os.read(0, 1)) or os.getppid() != parent


def children() -> list[int]:
    """Return the running children of this process, the server's orphans included (see SUBREAPER)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(entry.parent.name))
    return found


def end(server: subprocess.Popen[bytes], seconds: float) -> None:
    """End the server, then every process that it started."""
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    until = time.monotonic() + PATIENCE
    while (left := children()) and time.monotonic() < until:
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.02)


def main(seconds: float, log: str, command: list[str]) -> int:
    """Run the command until it ends or is no longer needed; return its exit code."""
    parent = os.getppid()
    asked = []
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    control(SUBREAPER, 1)

    def prepare() -> None:
        control(DEATH_SIGNAL, signal.SIGKILL)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)

    with Path(log).open("wb") as file:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as error:
            file.write(f"Error: {error}\n".encode())
            return 127
    while server.poll() is None and not asked and not alone(parent):
        pass
    end(server, seconds)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
