"""The figures of `make soak`: checks of memory and log, a row for each kind of server, and their place in the page."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures_page import ROOT, FiguresPage
from script_kit import markdown
from soak_client import NAMED, Tally

from semspec.results.code_digest import code_digest

SETTLED = 1_000  # requests until memory has settled
GROWTH = 1.1  # memory at most, as a multiple of what it settled at
MARKS = "<!-- soak: written by make soak -->", "<!-- end of soak -->"
ROOTS = ("Server", "Solver", "Solve", "speculate")
NAMES = {"hf": "`engine=hf`", "sglang": "two SGLang servers of the target, one of the draft"}
HEADINGS = (
    "",
    "requests",
    "kills",
    "wrong responses",
    "memory (RSS)",
    "answers completed after SIGTERM",
    "revision",
)
# kinds of requests that need not be in the log: those whose client disconnects, and those that ask no question
AT_MOST_ONCE = ("left", "half", "look")


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def settled(memory: Sequence[Sequence[int]]) -> list[int]:
    """Return the bytes recorded once memory had settled."""
    return [size for requests, size in memory if requests >= SETTLED]


def growth(memory: Sequence[Sequence[int]]) -> str:
    """Return a complaint if memory has grown too much, otherwise ""."""
    sizes = settled(memory)
    if sizes and max(sizes) > sizes[0] * GROWTH:
        return f"memory has grown from {sizes[0]:,} to {max(sizes):,} bytes"
    return ""


def check_log(log: Path, tally: Tally) -> None:
    """Check that the log has one line for each request, and none twice."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    told = collections.Counter(
        int(line["request"].removeprefix(NAMED))
        for line in lines
        if str(line.get("request")).startswith(NAMED)
    )
    for number, kind in tally.kinds.items():
        fewest = 0 if kind in AT_MOST_ONCE else 1
        if not fewest <= told[number] <= 1:
            tally.fail(f"{kind} {number} has {told[number]} lines in the log")


def text(found: Mapping[str, Any]) -> str:
    """Return the table that goes between the page's marks."""
    return "\n".join(markdown(HEADINGS, [_cells(name, row) for name, row in found["rows"].items()]))


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    kills, end, sizes = row.get("kills"), row["end"], settled(row["rss"])
    note = f" ({row['note']})" if "note" in row else ""
    most = f", {megabytes(max(sizes))} at most" if len(sizes) > 2 else ""
    return [
        name,
        f"{row['requests']:,} in {row['seconds']:,} s{note}",
        f"target servers {kills['target']}, draft servers {kills['draft']}" if kills else "",
        str(row["wrong"]),
        f"{megabytes(sizes[0])} after the first {SETTLED:,}, {megabytes(sizes[-1])} at the end ({100 * (sizes[-1] / sizes[0] - 1):+.1f} %){most}",
        f"{end['whole']} of {end['of']} ({end['streams']} of them streamed), exit code {end['code']}",
        row["provenance"]["git"]["revision"][:10],
    ]


FIGURES = FiguresPage(
    "soak",
    "docs/measurements/serving.md",
    MARKS,
    text,
    "the code has changed since the figures were measured",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def with_row(
    found: Mapping[str, Any] | None, name: str, row: Mapping[str, Any], of: str
) -> dict[str, Any]:
    """Return all figures with one kind of server's row replaced, or added."""
    rows = {**found["rows"], name: row} if found is not None else {name: row}
    return {"digest": of, "rows": dict(sorted(rows.items()))}
