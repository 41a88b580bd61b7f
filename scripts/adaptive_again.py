"""Rows of `make never-slower` that miss the aim, measured again in longer runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adaptive_rows import WANTED, Row, all_rows, drafts_told, speed, spoken
from figures_page import Kept
from script_kit import markdown

from semspec.engines.pool import Engines
from semspec.results.metrics import Interval

AGAIN = ", again"  # marks the second measurement of a row among the saved ones
PROBLEMS = 64  # of a longer run, one at a time


def measured(
    todo: Mapping[str, Row],
    longer: Callable[[Mapping[str, Any]], int],
    kept: Kept,
    engines: Engines,
    of: Mapping[str, Any],
) -> dict[str, Any]:
    """Measure all rows, and those that miss the aim again.

    ``longer``: how many problems a row is measured again with, by its own options; 0: not at all.
    """
    rows = all_rows(todo, kept, engines, of["workers"])
    again: dict[str, Row] = {}
    for key, (name, kind, temperature, given, against) in todo.items():
        if speed(rows[key], "usual")[0] < WANTED and (problems := longer(given)):
            more = {**given, "problems": problems}
            again[key + AGAIN] = name, kind, temperature, more, against
    found = all_rows(again, kept, engines, of["workers"])
    return {"rows": rows, "again": {key.removesuffix(AGAIN): row for key, row in found.items()}}


def table(found: Mapping[str, Any], few: str, many: str) -> list[str]:
    """Return the table of the rows that were measured again, with its heading; nothing if there are none.

    ``few``, ``many``: the length of the first runs and of these, in words.
    """
    again, rows = found.get("again", {}), found["rows"]
    if not again:
        return []
    *_, missed, entirely = map(int, places([speed(row, "usual") for row in again.values()]))
    headings = [
        "",
        *(f"{count}, usual price [95 %] (answers alone)" for count in (few, many)),
        f"{many}, wall clock [95 %] (answers alone)",
        "rounds with a draft; tokens drafted, accepted per draft",
    ]
    cells = [
        [key, spoken(rows[key], "usual"), spoken(row, "usual"), spoken(row), drafts_told(row)]
        for key, row in again.items()
    ]
    return [
        f"### Rows below {WANTED:.2f}x, measured again with {many}",
        "",
        f"These runs are new and contain nothing of the first ones, so that rows that were low by chance are not low here."
        f" {missed + entirely} of {len(again)} rows are below {WANTED:.2f}x again, {entirely} with the whole interval.",
        "",
        *markdown(headings, cells),
        "",
    ]


def places(found: Sequence[tuple[float, Interval | None]]) -> list[str]:
    """Count the rows by where their intervals lie: at the aim or above, across it, or below."""
    ends = [(value, *(bounds or (-math.inf, math.inf))) for value, bounds in found]
    above = sum(low >= WANTED for _, low, _ in ends)
    below = sum(high < WANTED for _, _, high in ends)
    missed = sum(value < WANTED for value, _, _ in ends) - below
    return list(map(str, (above, len(ends) - above - missed - below, missed, below)))
