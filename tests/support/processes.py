"""Processes that tests start and interrupt."""

from __future__ import annotations

import signal


def hear_interrupts() -> None:
    """For ``preexec_fn``: a test run in the background ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
