"""What the log of a server says of its end."""

from __future__ import annotations

import re
from pathlib import Path

LAST = 1 << 18  # bytes of a log that are read
# lines among which an error counts: a server may have worked for weeks behind earlier ones
NEAR_THE_END = 100
NO_TRITON = "No module named 'triton'"  # what an SGLang ends with where torch brought none
_ERROR = re.compile(r"[\w.]*Error\b")  # a line that begins so is the last one of a traceback


def why(log: Path) -> str:
    """Return what a log ends with: its last error, else the last line; with the way out if it is known."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST))
            text = file.read().decode(errors="replace")
        lines = [x.strip() for x in text.splitlines() if x.strip()]
    except OSError as error:
        return str(error)
    last_ones = lines[-NEAR_THE_END:]
    telling = [x for x in last_ones if _ERROR.match(x) or "semspec's SGLang plugin" in x]
    last = (telling or lines or ["its log is empty"])[-1][:300]
    if NO_TRITON in last:
        last += (
            "; SGLang imports triton, which this torch did not bring: install SGLang with the torch that it asks for"
            " (a CUDA build), or, on a CPU, go on as docs/sglang.md says of triton, or use engine=hf"
        )
    return last
