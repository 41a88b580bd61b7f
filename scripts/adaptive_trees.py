"""The third table of `make never-slower`: trees in turn with chains of the same drafter, and a chain with one of fixed length.

Two rows of the first table cannot be compared: the target's tokens may have cost more while one of them was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from adaptive_rows import (
    Row,
    all_rows,
    answer_alone,
    drafts_told,
    equal_texts,
    side_by_side,
    spoken,
)
from figures_page import FiguresPage, Kept
from script_kit import markdown

from semspec.engines.pool import Engines

CHAIN_OF = {"lm, dynamic tree": "lm", "lm, sampled tree": "lm", "eagle3": "eagle3, chain"}
FIXED_OF = {"eagle3, chain": "eagle3, chain of 6"}  # a fixed length
OVER = CHAIN_OF | FIXED_OF
MARKS = (
    "<!-- never-slower-trees: written by make never-slower-trees -->",
    "<!-- end of never-slower-trees -->",
)
WHOLE: dict[str, list[Any]] = {
    "drafters": list(OVER),
    "texts": ["synthetic", "editing"],  # on the others hardly anything is drafted
    "temperatures": [0.0, 0.6],
}


def rows(of: Mapping[str, Any], kept: Kept, engines: Engines) -> dict[str, Any]:
    """Measure each tree in turn with its chain."""
    columns = ("drafters", "texts", "temperatures")
    todo: dict[str, Row] = {
        f"{name}/{kind}/{temperature:g}": (name, kind, temperature, of, OVER[name])
        for name, kind, temperature in product(*(of[column] for column in columns))
    }
    return {"rows": all_rows(todo, kept, engines, of["workers"])}


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    rows, of = found["rows"], found["of"]
    headings = [
        "drafts, over",
        "text",
        "T",
        "each pass at its usual price [95 %] (answers alone)",
        "wall clock [95 %] (answers alone)",
        "rounds with a draft; tokens drafted, accepted per draft",
        "same text",
    ]
    cells, trees = [], []
    for name, kind, temperature in product(of["drafters"], of["texts"], of["temperatures"]):
        row = rows[f"{name}/{kind}/{temperature:g}"]
        trees += row["groups"] if name in CHAIN_OF else []
        same = "" if temperature else "{} of {}".format(*equal_texts([row]))
        over = f"{name}, over {OVER[name]}"
        speeds = [spoken(row, clock) for clock in ("usual", "wall")]
        cells.append([over, f"`{kind}`", f"{temperature:g}", *speeds, drafts_told(row), same])
    told = f"{len(rows)} rows of {of['problems']} problems, in {of['turns']} runs that begin with nothing learned."
    if trees:
        whole, bounds = answer_alone({"groups": trees}, "usual")
        ends = f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""
        told += f" All answers together, each pass at its usual price: trees have {whole:.2f}x{ends} of their chains' speed."
    told += f" {found['provenance']['machine']['cpu']}, one thread{side_by_side(of)}."
    return "\n".join([told, "", *markdown(headings, cells)])


FIGURES = FiguresPage(
    "never-slower-trees",
    "docs/measurements/never_slower.md",
    MARKS,
    text,
    "the code has changed since the figures were measured",
)
