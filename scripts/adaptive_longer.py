"""The third table of `make never-slower`: the rows of the first one that missed the aim, in longer runs.

What a run loses by learning, it loses once. Each turn here has ``LONGER`` times as many problems and shows how much of that loss remains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adaptive_rows import (
    SMALL,
    WANTED,
    drafts_told,
    greedy_told,
    measured_or_kept,
    missed,
    speed,
    spoken,
)
from figures_page import ROOT, FiguresPage, Kept
from script_kit import markdown

from semspec.engines.pool import Engines
from semspec.errors import UserError

MARKS = (
    "<!-- never-slower-longer: written by make never-slower-longer -->",
    "<!-- end of never-slower-longer -->",
)
LONGER = 4


def first_table() -> dict[str, Any]:
    """Return the rows of the first table that are below the aim."""
    at = ROOT / "results/never-slower.json"
    if not at.exists():
        raise UserError(f"{at} is missing: run make never-slower first")
    rows = json.loads(at.read_text(encoding="utf-8"))["rows"]
    return {key: row for key, row in rows.items() if speed(row)[0] < WANTED}


def rows(of: Mapping[str, Any], kept: Kept, engines: Engines) -> dict[str, Any]:
    """Measure each of these rows with more problems."""
    found: dict[str, Any] = {}
    given = {**of, "concurrency": 1, "problems": LONGER * of["problems"]}
    for key in first_table():
        name, kind, temperature = key.rsplit("/", 2)
        found[key] = measured_or_kept(key, kept, name, kind, float(temperature), given, engines)
    return found


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    rows, of, before = found["rows"], found["of"], first_table()
    together = {"groups": [group for row in rows.values() for group in row["groups"]]}
    return "\n".join(
        [
            f"{len(rows)} rows of {LONGER * of['problems']} problems ({SMALL} times as many where the copier answers), solved with and without drafts in {of['turns']} turn(s)."
            f" {found['provenance']['machine']['cpu']}, one thread. {len(missed(rows))} rows are below {WANTED:.2f}x; all rows taken together have {spoken(together)}."
            f"{greedy_told(rows)}",
            "",
            *markdown(
                [
                    "drafter / text / T",
                    "in the first table [95 %] (answers alone)",
                    "in the longer run [95 %] (answers alone)",
                    "the same by CPU time",
                    "rounds with a draft; tokens drafted, accepted per draft",
                ],
                [
                    [
                        f"{key}",
                        spoken(before[key]) if key in before else "",
                        spoken(row),
                        spoken(row, "cpu"),
                        drafts_told(row),
                    ]
                    for key, row in rows.items()
                ],
            ),
        ]
    )


FIGURES = FiguresPage(
    "never-slower-longer",
    "docs/measurements/never_slower.md",
    MARKS,
    text,
    "the code has changed since the figures were measured",
)
