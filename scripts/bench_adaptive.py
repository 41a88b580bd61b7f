"""`make never-slower`: is drafting ever slower than not drafting? Every drafter, lossless, in turn with the target alone.

    python scripts/bench_adaptive.py [--drafters lm suffix] [--texts synthetic editing] [--problems 8]
    python scripts/bench_adaptive.py --check      measure nothing: what is out of date?

Each problem is solved by the target alone and with drafts as a run makes them (``adaptive=true``), one after the other,
in this process, in an order that alternates, several times. The first problems, from which a run learns what its drafts
are worth, are counted like all others, but for one that warms up. The prompt's own pass, which both need, is timed by
itself and left out: texts that were drawn differ in length, and a short one would seem slow. With --cpu the engines'
own clocks count CPU time, too: what drafts cost is then not what else the machine does. A kill costs one row. Figures go to results/never-slower.json and as tables
to docs/measurements/never_slower.md, once all rows are there.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from statistics import median
from typing import Any

from figures_page import ROOT, FiguresPage, Kept
from script_kit import check_known, markdown, parser

from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.engines.pool import Engines
from semspec.loading.settled import settle
from semspec.protocols import BenchmarkProblem
from semspec.results.code_digest import code_digest
from semspec.results.metrics import rate_ratio
from semspec.solver import Solver
from semspec.storage import provenance

MARKS = "<!-- never-slower: written by make never-slower -->", "<!-- end of never-slower -->"
DRAFTERS = {
    "lm": ("draft=lm",),
    "lm, dynamic tree": ("draft=lm", "tree=dynamic"),
    "lm, sampled tree": ("draft=lm", "tree=sampled"),
    "eagle3": ("draft=eagle3",),
    "eagle3, chain": ("draft=eagle3", "tree=chain"),
    "medusa": ("draft=medusa",),
    **{
        name: (f"draft={name}",)
        for name in (
            "prompt_lookup suffix pld_plus adapld token_recycling logitspec rest dresd hybrid"
        ).split()
    },
}
# that need no draft model, head or corpus of the target's: on texts that repeat themselves, of the target that writes such
COPYING = "prompt_lookup suffix pld_plus adapld token_recycling logitspec hybrid".split()
TEXTS = {
    "synthetic": "Chains of thought, which repeat little",
    "editing": "A list written down again with one value changed",
    "grounded": "Facts quoted from a paragraph",
    "periodic": "A phrase over and over",
}
PERIODS = ("a b ", "one two three ", "x=1; ", "Monday ", "to be or not ", "7 + 7 = 14, ")
WANTED = 0.97  # of the target's own speed, at least
ROOTS = ("Solver", "Solve", "central")
WARM = 1  # problems that are not counted
SMALL = 4  # times as many problems for the embedded copier: its answers take a tenth of the target's seconds
PROMPTS = 3  # times that a prompt is read by itself


def problems_of(text: str, count: int) -> Iterator[BenchmarkProblem]:
    """Yield problems of a benchmark, or questions that repeat one phrase."""
    if text == "periodic":
        for number in range(count):
            phrase = PERIODS[number % len(PERIODS)]
            times = 24 + number // len(PERIODS)
            yield BenchmarkProblem(f"periodic-{number}", f"Go on: {phrase * times}".strip())
        return
    made = build(compose([f"benchmark={text}"])).benchmark
    yield from islice(made.problems(), count)


def measured(
    name: str, text: str, temperature: float, given: Mapping[str, Any], engines: Engines
) -> dict[str, Any]:
    """Solve problems in both ways in turn; return seconds and tokens of each group of them."""
    copier = ["model=tiny-copier"] * (text != "synthetic" and name in COPYING)
    more = SMALL if copier else 1
    options = [*copier, *DRAFTERS[name], "accept=lossless", "split=token"]
    options += [f"temperature={temperature}", "quiet=true"]
    size = given["concurrency"]
    solver = _solver(
        [*options, f"max_new_tokens={given['tokens']}", f"concurrency={size}"], engines
    )
    prompts = _solver(
        [*options, "adaptive=false", "max_new_tokens=1", f"concurrency={size}"], engines
    )
    settle()
    warm = WARM * size * more
    todo = list(problems_of(text, given["problems"] * more + warm))
    groups: list[dict[str, float]] = []
    counts: Counter[str] = Counter()
    for start in range(0, len(todo), size):
        these = todo[start : start + size]
        read = [_timed(prompts, these, "plain") for _ in range(PROMPTS)]
        group: dict[str, float] = defaultdict(float)
        for turn in range(given["turns"]):
            order = ("plain", "speculative")[:: -1 if (start // size + turn) % 2 else 1]
            for mode in order:
                wall, cpu, done = _timed(solver, these, mode)
                group[f"{mode} wall"] += wall - median(one[0] for one in read)
                group[f"{mode} cpu"] += cpu - median(one[1] for one in read)
                group[f"{mode} tokens"] += sum(len(one.outcome.tokens) for one in done)
                if start < warm or mode == "plain":
                    continue
                for one in (one for solved in done for one in solved.outcome.rounds):
                    counts += Counter(
                        rounds=1,
                        drafts=bool(one.drafted),
                        drafted=len(one.drafted),
                        kept=len(one.kept),
                    )
        if start >= warm:
            groups.append(group)
    return {"groups": groups, **counts}


def _solver(options: list[str], engines: Engines) -> Solver:
    solver = Solver(build(compose(expand_shorthands(options))), shared=engines)
    solver.fetch()
    solver.load()
    return solver


def _timed(
    solver: Solver, problems: Sequence[BenchmarkProblem], mode: str
) -> tuple[float, float, list[Any]]:
    """Solve problems; return the seconds by the wall and of the processor, and what came of it."""
    cpu, wall = time.process_time(), time.perf_counter()
    done = list(solver.solve(problems, mode))  # type: ignore[arg-type]
    return time.perf_counter() - wall, time.process_time() - cpu, done


def speed(row: Mapping[str, Any], clock: str = "wall") -> tuple[float, tuple[float, float] | None]:
    """Return how many times as fast as the target alone, by seconds a token of all problems, with its interval over problems."""
    groups = row["groups"]
    return rate_ratio(
        [(*_rate(g, "speculative", clock), *_rate(g, "plain", clock)) for g in groups]
    )


def _rate(group: Mapping[str, float], mode: str, clock: str) -> tuple[float, float]:
    return group[f"{mode} tokens"], group[f"{mode} {clock}"]


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    rows, of = found["rows"], found["of"]
    temperatures = of["temperatures"]
    speeds = {key: speed(row)[0] for key, row in rows.items()}
    least = min(speeds, key=speeds.__getitem__)
    below = sum(one < WANTED for one in speeds.values())
    sure = sum((speed(row)[1] or (0.0, 0.0))[1] < WANTED for row in rows.values())
    lines = [
        f"{len(rows)} rows: {below} are below {WANTED:.2f}x, {sure} of them with their whole interval. The least is"
        f" {speeds[least]:.2f}x ({least}). {of['problems']} problems each ({SMALL} times as many of the copier's), solved {of['turns']} times in both ways, {of['concurrency']} at a time, at most"
        f" {of['tokens']} tokens; {found['provenance']['machine']['cpu']}, one thread.",
        "",
    ]
    headings = ["", *(f"T = {t:g} [95 %]" for t in temperatures)]
    headings += [f"T = {t:g}: rounds with a draft; drafted, kept" for t in temperatures]
    for name, title in TEXTS.items():
        own = [d for d in of["drafters"] if any(f"{d}/{name}/{t:g}" in rows for t in temperatures)]
        if own:
            cells = [_cells([rows[f"{d}/{name}/{t:g}"] for t in temperatures], d) for d in own]
            lines += [f"### {title} (`{name}`)", "", *markdown(headings, cells), ""]
    return "\n".join(lines).rstrip("\n")


def _cells(rows: list[Mapping[str, Any]], name: str) -> list[str]:
    speeds, drafts = [], []
    for row in rows:
        value, bounds = speed(row)
        ends = f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""
        speeds.append(f"{value:.2f}x{ends}")
        count = max(row.get("drafts", 0), 1)
        share = row.get("drafts", 0) / max(row.get("rounds", 0), 1)
        drafts.append(
            f"{100 * share:.0f} %; {row.get('drafted', 0) / count:.1f}, {row.get('kept', 0) / count:.1f}"
        )
    return [name, *speeds, *drafts]


FIGURES = FiguresPage(
    "never-slower",
    "docs/measurements/never_slower.md",
    MARKS,
    text,
    "the code has changed since this was measured",
)


def digest() -> str:
    return code_digest(ROOT / "semspec", ROOTS)


def main() -> int:
    a = parser(
        __doc__,
        problems=(8, "of each row, but for one that warms up"),
        drafters=(list(DRAFTERS), "which of them"),
        texts=(list(TEXTS), "which of them"),
        temperatures=[0.0, 0.6],
        turns=(2, "in which each problem is solved in both ways"),
        tokens=(256, "of an answer at most"),
        concurrency=(1, "problems under way at a time"),
        cpu=(False, "decide by CPU time: other work is running here"),
        **FIGURES.options,
    ).parse_args()
    if (ended := FIGURES.asked(a, digest)) is not None:
        return ended
    check_known(a.drafters, DRAFTERS)
    check_known(a.texts, TEXTS)
    of = {
        name: getattr(a, name)
        for name in (
            "problems",
            "turns",
            "drafters",
            "texts",
            "temperatures",
            "tokens",
            "concurrency",
        )
    }
    if a.cpu:
        vars(time)["perf_counter"] = time.process_time
    kept = Kept(ROOT / "runs/never-slower.json", {**of, "digest": digest(), "cpu": a.cpu})
    rows: dict[str, Any] = {}
    with Engines() as engines:
        for name, kind, temperature in product(a.drafters, a.texts, a.temperatures):
            key = f"{name}/{kind}/{temperature:g}"
            rows[key] = row = kept.part(
                key,
                lambda: measured(name, kind, temperature, of, engines),  # noqa: B023
            )
            print(
                f"{key}: {speed(row)[0]:.2f}x, by CPU time {speed(row, 'cpu')[0]:.2f}x", flush=True
            )
    found = {"digest": digest(), "provenance": provenance.collect(), "of": of, "rows": rows}
    whole = [a.drafters, a.texts] == [list(DRAFTERS), list(TEXTS)] and not a.cpu
    FIGURES.keep(found, whole and a.concurrency == 1)
    if whole and a.concurrency == 1:
        kept.over()
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
