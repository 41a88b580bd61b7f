"""Find out from a server's log why the server ended."""

from __future__ import annotations

import re
from pathlib import Path

LAST = 1 << 18  # only this many bytes at the end of a log are read
# only errors in the last lines count: the server may have run for weeks since an earlier one
NEAR_THE_END = 100
NO_TRITON = "No module named 'triton'"  # SGLang's last error if torch came without triton
_ERROR = re.compile(r"[\w.]*Error\b")  # the last line of a traceback begins like this


def why(log: Path) -> str:
    """Return the last error near the end of a log, else its last line, with a remedy if one is known."""
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
            "; SGLang needs triton, which this torch does not include: install SGLang with the"
            " torch that it requires (a CUDA build), follow docs/sglang.md on triton for a CPU,"
            " or use engine=hf"
        )
    return last
