"""Read from a pipe whose other end may write too much, or nothing."""

from __future__ import annotations

import os
import select
import time


def first_line(pipe: int, until: float, longest: int) -> bytes | None:
    """Return the first line, b"" if the pipe ends before it, or None once ``until`` has passed.

    A line longer than ``longest`` bytes counts as an end.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN | select.POLLHUP)
    read = b""
    while (left := until - time.monotonic()) > 0:
        if not waiting.poll(1000 * left):
            break
        some = os.read(pipe, longest - len(read))
        read += some
        if b"\n" in read:
            return read.partition(b"\n")[0]
        if not some:  # end of the pipe, or the line is too long
            return b""
    return None
