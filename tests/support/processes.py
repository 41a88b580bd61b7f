"""Processes that tests start and interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def hear_interrupts() -> None:
    """For ``preexec_fn``: a test run in the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finished(
    command: Sequence[str],
    code: int = 0,
    cwd: Path | None = None,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, from this checkout; it must end with this code.

    ``more`` are variables of its own.
    """
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(Path.cwd())} | (more or {})
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
