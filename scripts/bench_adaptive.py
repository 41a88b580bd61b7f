"""`make never-slower`: measure whether any lossless drafter is slower than no drafts, in turn with the target alone.

    python scripts/bench_adaptive.py [--drafters lm suffix] [--texts synthetic editing] [--problems 32]
    python scripts/bench_adaptive.py --at-once 4 16      the second table: several problems at a time (adaptive_crowd.py)
    python scripts/bench_adaptive.py --trees             the third: trees in turn with their own chains (adaptive_trees.py)
    python scripts/bench_adaptive.py --check             measure nothing; print what is out of date

The target alone and the drafter as in a run (``adaptive=true``) solve each problem one after the other, in this process, in
alternating order. Each turn is a run of its own and has its own solver, which
begins as a run does: it has measured the cost of passes and knows nothing of its drafts. Losses from learning count from the first
problem on. Another solver warms the machine up and writes the target's own texts; like a run without drafts, it measures no costs.
The prompt's pass, which both need, is timed separately. Sampled texts differ in length, so the comparison is the time from
question to answer, scaled to texts as long as the target's, and next to it the answer's time alone. Both are given as wall-clock
and as CPU time, and with each pass at the usual price of its kind (pass_times.py), which other work on the machine hardly affects.
Greedy texts are compared with the target's. With --cpu the engines' own clocks count CPU time too, so
that other work on the machine does not enter the cost of drafts. A kill costs one row. Once all rows are measured, figures go to
results/never-slower.json and tables to docs/measurements/never_slower.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import adaptive_again as again
import adaptive_crowd as crowd
import adaptive_trees as trees
from adaptive_rows import (
    DRAFTERS,
    OWN,
    SMALL,
    TEXTS,
    WANTED,
    Row,
    answer_alone,
    drafts_told,
    equal_texts,
    side_by_side,
    speed,
    spoken,
    summary,
)
from figures_page import ROOT, FiguresPage, Kept
from script_kit import check_known, markdown, parser

from semspec.engines.pool import Engines
from semspec.results.code_digest import code_digest
from semspec.storage import provenance

CLOCK_NAMES = {"usual": "each pass at its usual price", "wall": "wall clock", "cpu": "CPU time"}
SHOWN = "usual", "wall"
MARKS = "<!-- never-slower: written by make never-slower -->", "<!-- end of never-slower -->"
WHOLE: dict[str, list[Any]] = {
    "drafters": list(DRAFTERS),
    "texts": list(TEXTS),
    "temperatures": [0.0, 0.6],
}
ROOTS = ("Solver", "Solve", "central")


def text(found: Mapping[str, Any]) -> str:
    """Return the text between the page's marks."""
    rows, of = found["rows"], found["of"]
    temperatures = of["temperatures"]
    lines = [
        f"{len(rows)} rows of {of['problems']} problems, {of['concurrency']} at a time, with answers of at most {of['tokens']} tokens, solved with and without drafts"
        f" in {of['turns']} turn(s) ({SMALL * of['turns']} where the copier answers). Each turn is a run by itself, whose drafts begin with nothing learned. {found['provenance']['machine']['cpu']}, one thread{side_by_side(of)}."
        f"{summary(rows)}",
        "",
        *markdown(
            [
                "Number of rows",
                f"interval entirely at or above {WANTED:.2f}x",
                f"at or above {WANTED:.2f}x, interval extends below",
                f"below {WANTED:.2f}x, interval reaches it",
                f"interval entirely below {WANTED:.2f}x",
            ],
            [
                [f"{what}, {clock}", *again.places([of_row(row, short) for row in rows.values()])]
                for what, of_row in (
                    ("From question to answer", speed),
                    ("Answers alone", answer_alone),
                )
                for short, clock in CLOCK_NAMES.items()
            ],
        ),
        "",
    ]
    headings = [
        "",
        *(f"T = {t:g}, usual price [95 %] (answers alone)" for t in temperatures),
        *(f"T = {t:g}, wall clock [95 %] (answers alone)" for t in temperatures),
    ]
    more = [
        f"T = {t:g}: rounds with a draft; tokens drafted, accepted per draft" for t in temperatures
    ]
    more += ["T = 0: answers equal to the target's own"] * (0 in temperatures)
    for name, title in TEXTS.items():
        own = [d for d in of["drafters"] if any(f"{d}/{name}/{t:g}" in rows for t in temperatures)]
        if own:
            cells = [_cells({t: rows[f"{d}/{name}/{t:g}"] for t in temperatures}, d) for d in own]
            lines += [f"### {title} (`{name}`)", "", *markdown([*headings, *more], cells), ""]
    others = [name for name in of["texts"] if name != OWN]
    if len(others) > 1:
        lines += [f"### {', '.join(f'`{name}`' for name in others)} taken together", ""]
        cells = [
            [d, *(_together(rows, d, others, t, c) for c in SHOWN for t in temperatures)]
            for d in of["drafters"]
        ]
        lines += [*markdown(headings, cells), ""]
    lines += again.table(found, *(f"{of[name]} problems" for name in ("problems", "again")))
    return "\n".join(lines).rstrip("\n")


def _together(
    rows: Mapping[str, Any], drafter: str, texts: Sequence[str], temperature: float, clock: str
) -> str:
    """Return the cell of a drafter over several texts together, which is less noisy than each by itself."""
    keys = [f"{drafter}/{text}/{temperature:g}" for text in texts]
    groups = [group for key in keys if key in rows for group in rows[key]["groups"]]
    return spoken({"groups": groups}, clock) if groups else ""


def _cells(rows: Mapping[float, Mapping[str, Any]], name: str) -> list[str]:
    same = ["{} of {}".format(*equal_texts([row])) for t, row in rows.items() if t == 0]
    speeds = [spoken(row, clock) for clock in SHOWN for row in rows.values()]
    return [name, *speeds, *map(drafts_told, rows.values()), *same]


FIGURES = FiguresPage(
    "never-slower",
    "docs/measurements/never_slower.md",
    MARKS,
    text,
    "the code has changed since the figures were measured",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def main() -> int:
    a = parser(
        __doc__,
        problems=(
            0,
            "problems per row; default: 16, with --trees 48; with --at-once, at least four groups",
        ),
        again=(
            again.PROBLEMS,
            "problems of rows that miss the aim and are measured again (with --at-once: a quarter as many groups); 0: none are",
        ),
        workers=(1, "rows to measure at a time, each on a core of its own"),
        drafters=([], "which drafters; default: all"),
        texts=([], "which texts; default: all"),
        temperatures=([], "which temperatures; default: all"),
        turns=(
            0,
            f"turns, each by a new solver that solves every problem with and without drafts; default: 1, with --trees 3; {SMALL} times as many where the copier answers",
        ),
        tokens=(256, "most tokens of an answer"),
        at_once=(
            [1],
            "problems at a time; more than one writes the table of make never-slower-together",
        ),
        trees=(False, "write the table of make never-slower-trees"),
        cpu=(False, "decide by CPU time, because other work runs on this machine"),
        **FIGURES.options,
    ).parse_args()
    alone = a.at_once == [1]
    figures, whole, measure = FIGURES, WHOLE, _rows
    if a.trees:
        figures, whole, measure = trees.FIGURES, trees.WHOLE, trees.rows
    elif not alone:
        figures, whole, measure = crowd.FIGURES, crowd.WHOLE, crowd.rows
    if (ended := figures.asked(a, digest)) is not None:
        return ended
    a.problems, a.turns = a.problems or (48 if a.trees else 16), a.turns or (3 if a.trees else 1)
    of: dict[str, Any] = {name: getattr(a, name) for name in ("problems", "turns", "tokens")}
    of["workers"] = a.workers
    for name, every in whole.items():
        of[name] = [type(every[0])(one) for one in getattr(a, name)] or every
    check_known(of.get("drafters", ()), DRAFTERS)
    check_known(of.get("texts", ()), TEXTS)
    of["again"] = 0 if a.trees else a.again
    if alone:
        of["concurrency"] = 1
    if a.cpu:
        vars(time)["perf_counter"] = time.process_time
    kept = Kept(ROOT / f"runs/{figures.name}.json", {**of, "digest": digest(), "cpu": a.cpu})
    with Engines() as engines:
        rows = measure(of, kept, engines)
    found = {"digest": digest(), "provenance": provenance.collect(), "of": of, **rows}
    all_of_it = not a.cpu and all(of[name] == every for name, every in whole.items())
    figures.keep(found, all_of_it)
    if all_of_it:
        kept.over()
    return 0


def _rows(of: Mapping[str, Any], kept: Kept, engines: Engines) -> dict[str, Any]:
    """Measure each drafter on each kind of text, one problem at a time, and rows that miss the aim again in longer runs."""
    todo: dict[str, Row] = {
        f"{name}/{kind}/{temperature:g}": (name, kind, temperature, of, None)
        for name, kind, temperature in product(of["drafters"], of["texts"], of["temperatures"])
    }
    return again.measured(todo, lambda given: given["again"], kept, engines, of)


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
