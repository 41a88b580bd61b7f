"""The second table of `make never-slower`: several problems at a time, which share passes.

The target alone runs as many at a time. Problems begin in groups of that size, and the next group begins when the last
answer of the previous one is finished, as in a run: towards a group's end fewer and fewer are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import adaptive_again as again
from adaptive_rows import (
    SMALL,
    TEXTS,
    Row,
    drafts_told,
    equal_texts,
    side_by_side,
    spoken,
    summary,
)
from figures_page import FiguresPage, Kept
from script_kit import markdown

from semspec.engines.pool import Engines

MARKS = (
    "<!-- never-slower-together: written by make never-slower-together -->",
    "<!-- end of never-slower-together -->",
)
WHOLE: dict[str, list[Any]] = {
    "drafters": [
        "lm",
        "eagle3",
        "eagle3, chain",
        *"prompt_lookup suffix adapld token_recycling logitspec rest".split(),
        "hybrid, suffix+lm",
    ],
    "texts": ["synthetic", "editing", "grounded"],
    "temperatures": [0.0],
    "at_once": [4, 16],
}
MANY = 4  # groups, at least


def rows(of: Mapping[str, Any], kept: Kept, engines: Engines) -> dict[str, Any]:
    """Measure each drafter on each kind of text, with each number of problems at a time."""
    todo: dict[str, Row] = {}
    columns = ("at_once", "drafters", "texts", "temperatures")
    for size, name, kind, temperature in product(*(of[column] for column in columns)):
        given = {**of, "concurrency": size, "problems": max(of["problems"], MANY * size)}
        todo[_key(size, name, kind, temperature)] = name, kind, temperature, given, None
    return again.measured(todo, _longer, kept, engines, of)


def _longer(given: Mapping[str, Any]) -> int:
    """Return how many problems a row is measured again with."""
    return _groups_again(given) * int(given["concurrency"])


def _groups_again(of: Mapping[str, Any]) -> int:
    """Return how many groups a row is measured again with: ``again`` counts problems, 4 in a group."""
    return int(of["again"]) // MANY


def _key(size: int, name: str, kind: str, temperature: float) -> str:
    return f"{size}/{name}/{kind}/{temperature:g}"


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    rows, of = found["rows"], found["of"]
    lines = [
        f"{len(rows)} rows of {of['problems']} problems, and at least {MANY} groups, with answers of at most {of['tokens']} tokens, solved with and without drafts"
        f" in {of['turns']} turn(s) ({SMALL * of['turns']} where the copier answers). Each turn is a run by itself, whose drafts begin with nothing learned. {found['provenance']['machine']['cpu']}, one thread{side_by_side(of)}."
        f"{summary(rows)}",
        "",
    ]
    for name, temperature in product(of["texts"], of["temperatures"]):
        lines += [f"### {TEXTS[name]} (`{name}`, T = {temperature:g})", ""]
        lines += [*_table(rows, of, name, temperature), ""]
    lines += again.table(found, f"at least {MANY} groups", f"{_groups_again(of)} groups")
    return "\n".join(lines).rstrip("\n")


def _table(
    rows: Mapping[str, Any], of: Mapping[str, Any], kind: str, temperature: float
) -> list[str]:
    """Return the table of one kind of text: a row per drafter, a column per number of problems at a time."""
    headings = [
        heading
        for size in of["at_once"]
        for heading in (
            f"{size} at a time [95 %] (answers alone)",
            "each pass at its usual price",
            "rounds with a draft; tokens drafted, accepted per draft",
            *["answers equal to the target's own"] * (not temperature),
        )
    ]
    cells = []
    for name in of["drafters"]:
        cells.append([name])
        for size in of["at_once"]:
            row = rows[_key(size, name, kind, temperature)]
            cells[-1] += [spoken(row), spoken(row, "usual"), drafts_told(row)]
            if not temperature:
                cells[-1].append("{} of {}".format(*equal_texts([row])))
    return markdown(["", *headings], cells)


FIGURES = FiguresPage(
    "never-slower-together",
    "docs/measurements/never_slower.md",
    MARKS,
    text,
    "the code has changed since the figures were measured",
)
