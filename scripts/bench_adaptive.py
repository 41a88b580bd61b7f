"""`make never-slower`: is drafting ever slower than not drafting? Every drafter, lossless, in turn with the target alone.

    python scripts/bench_adaptive.py [--drafters lm suffix] [--texts synthetic editing] [--problems 8]
    python scripts/bench_adaptive.py --check      measure nothing: what is out of date?

Each problem is solved by the target alone and with drafts as a run makes them (``adaptive=true``), one after the other,
in this process, in an order that alternates, in several turns. Each turn has a solver of its own, which begins as a run does:
it has measured what passes cost, and learned nothing of its drafts. What it loses by learning is counted from the first
problem on. Another solver warms the machine up, and writes the target's own texts; it measures no costs, as a run without drafts.
The prompt's own pass, which both need, is timed by itself: texts that were drawn differ in length, and what is compared is
the time from question to answer for texts as long as the target's own, and beside it the answer's time alone. Both are given by
the wall clock and by CPU time, and greedy texts are held against the target's own. With --cpu the engines' own clocks count
CPU time, too: what drafts cost is then not what else the machine does. A kill costs one row. Figures go to
results/never-slower.json and as tables to docs/measurements/never_slower.md, once all rows are there.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
from semspec.results.metrics import Interval, rate_ratio, resampled
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
    "hybrid, suffix+lm": ("draft=hybrid", "sources=suffix+lm"),
    "hybrid, suffix+eagle3": ("draft=hybrid", "sources=suffix+eagle3"),
}
# that need no draft model, head or corpus of the target's: on texts that repeat themselves, of the target that writes such
COPYING = "prompt_lookup suffix pld_plus adapld token_recycling logitspec hybrid".split()
TEXTS = {
    "synthetic": "Chains of thought, which repeat little",
    "editing": "A list written down again with one value changed",
    "grounded": "Facts quoted from a paragraph",
    "periodic": "A phrase over and over",
}
OWN = "synthetic"  # what the embedded pair was trained for; on the others its drafts are hardly ever right
PERIODS = ("a b ", "one two three ", "x=1; ", "Monday ", "to be or not ", "7 + 7 = 14, ")
WANTED = 0.97  # of the target's own speed, at least
ROOTS = ("Solver", "Solve", "central")
SMALL = 4  # times as many problems for the embedded copier: its answers take a tenth of the target's seconds
PROMPTS = 3  # times that a prompt is read by itself
CLOCKS = ("wall", "cpu")
Groups = Sequence[Mapping[str, float]]


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
    """Solve problems in both ways in turn; return seconds, tokens and equal texts of each group of them."""
    copier = ["model=tiny-copier"] * (text != OWN and name in COPYING)
    more = SMALL if copier else 1
    options = [*copier, *DRAFTERS[name], "accept=lossless", "split=token"]
    options += [f"temperature={temperature}", "quiet=true"]
    options += [f"max_new_tokens={given['tokens']}", f"concurrency={given['concurrency']}"]
    off = _solver([*options, "adaptive=false"], engines)
    turns = [_solver(options, engines) for _ in range(given["turns"])]
    settle()
    size, todo = given["concurrency"], list(problems_of(text, given["problems"] * more))
    for mode in ("plain", "speculative"):
        _timed(off, todo[:size], mode)
    groups: list[dict[str, float]] = []
    counts: Counter[str] = Counter()
    for start in range(0, len(todo), size):
        these = todo[start : start + size]
        read = [_timed(off, these, "plain", 1) for _ in range(PROMPTS)]
        prompt = {clock: median(one[at] for one in read) for at, clock in enumerate(CLOCKS)}
        group: dict[str, float] = defaultdict(float)
        for turn, solver in enumerate(turns):
            for clock, seconds in prompt.items():
                group[f"prompt {clock}"] += seconds
            texts: dict[str, dict[str, list[int]]] = {}
            for mode in ("plain", "speculative")[:: -1 if (start // size + turn) % 2 else 1]:
                wall, cpu, done = _timed(off if mode == "plain" else solver, these, mode)
                group[f"{mode} wall"] += wall - prompt["wall"]
                group[f"{mode} cpu"] += cpu - prompt["cpu"]
                group[f"{mode} tokens"] += sum(len(one.outcome.tokens) for one in done)
                texts[mode] = {one.problem.id: list(one.outcome.tokens) for one in done}
                if mode == "plain":
                    continue
                for one in (one for solved in done for one in solved.outcome.rounds):
                    counts += Counter(
                        rounds=1,
                        drafts=bool(one.drafted),
                        drafted=len(one.drafted),
                        kept=len(one.kept),
                    )
            group["answers"] += len(these)
            for answer, tokens in texts["plain"].items():
                group["equal"] += texts["speculative"][answer] == tokens
        groups.append(group)
    return {"groups": groups, **counts}


def _solver(options: list[str], engines: Engines) -> Solver:
    solver = Solver(build(compose(expand_shorthands(options))), shared=engines)
    solver.fetch()
    solver.load()
    return solver


def _timed(
    solver: Solver, problems: Sequence[BenchmarkProblem], mode: str, budget: int | None = None
) -> tuple[float, float, list[Any]]:
    """Solve problems; return the seconds by the wall and of the processor, and what came of it."""
    cpu, wall = time.process_time(), time.perf_counter()
    done = list(solver.solve(problems, mode, budget))  # type: ignore[arg-type]
    return time.perf_counter() - wall, time.process_time() - cpu, done


def speed(row: Mapping[str, Any], clock: str = "wall") -> tuple[float, Interval | None]:
    """Return how many times as fast as the target alone a question is answered, with its interval over problems."""
    return resampled(row["groups"], partial(_from_question_to_answer, clock=clock))


def _from_question_to_answer(groups: Groups, clock: str) -> float:
    """Return the target's own seconds over those with drafts, for texts as long as the target's own."""

    def total(what: str) -> float:
        return math.fsum(group[what] for group in groups)

    prompts, longer = total(f"prompt {clock}"), total("plain tokens") / total("speculative tokens")
    return (prompts + total(f"plain {clock}")) / (prompts + longer * total(f"speculative {clock}"))


def answer_alone(row: Mapping[str, Any], clock: str = "wall") -> tuple[float, Interval | None]:
    """Return the same by seconds a token of the answers alone, without the prompt's own pass."""
    ways = ("speculative", "plain")
    return rate_ratio(
        [
            tuple(g[f"{way} {what}"] for way in ways for what in ("tokens", clock))
            for g in row["groups"]
        ]
    )  # type: ignore[misc]


def text(found: Mapping[str, Any]) -> str:
    """Return what stands between the page's marks."""
    rows, of = found["rows"], found["of"]
    temperatures = of["temperatures"]
    speeds = {key: speed(row)[0] for key, row in rows.items()}
    least = min(speeds, key=speeds.__getitem__)
    missed = _missed(rows)
    both = sum(speed(row, "cpu")[0] < WANTED for row in missed)
    equal, answers = _equal([row for key, row in rows.items() if key.endswith("/0")])
    lines = [
        f"{len(rows)} rows, {of['problems']} problems each ({SMALL} times as many of the copier's), solved {of['turns']} times in both ways, each time by a solver that"
        f" begins with nothing learned, {of['concurrency']} at a time, at most {of['tokens']} tokens; {found['provenance']['machine']['cpu']}, one thread."
        f" The median is {median(speeds.values()):.2f}x by the wall clock, and the least {speeds[least]:.2f}x ({least})."
        f" Of the {len(missed)} rows that are below {WANTED:.2f}x by the wall clock {both} are by CPU time, too."
        f" Greedy texts (T = 0) are equal to the target's own in {equal:,} of {answers:,} answers.",
        "",
        *markdown(
            [
                "Rows",
                f"whole interval at {WANTED:.2f}x or above",
                "at it or above, interval reaches below",
                "below, interval reaches it",
                "whole interval below",
            ],
            [
                [f"{what}, {clock}", *_places([of_row(row, short) for row in rows.values()])]
                for what, of_row in (
                    ("From question to answer", speed),
                    ("Answers alone", answer_alone),
                )
                for clock, short in (("wall clock", "wall"), ("CPU time", "cpu"))
            ],
        ),
        "",
    ]
    headings = ["", *(f"T = {t:g} [95 %] (answers alone)" for t in temperatures)]
    more = [f"T = {t:g}: rounds with a draft; drafted, kept" for t in temperatures]
    more += ["T = 0: texts equal to the target's own"] * (0 in temperatures)
    for name, title in TEXTS.items():
        own = [d for d in of["drafters"] if any(f"{d}/{name}/{t:g}" in rows for t in temperatures)]
        if own:
            cells = [_cells({t: rows[f"{d}/{name}/{t:g}"] for t in temperatures}, d) for d in own]
            lines += [f"### {title} (`{name}`)", "", *markdown([*headings, *more], cells), ""]
    others = [name for name in of["texts"] if name != OWN]
    if len(others) > 1:
        lines += [f"### {', '.join(f'`{name}`' for name in others)} together", ""]
        clocks = [f"T = {t:g} by CPU time" for t in temperatures]
        cells = [
            [d, *(_together(rows, d, others, t, c) for c in CLOCKS for t in temperatures)]
            for d in of["drafters"]
        ]
        lines += [*markdown([*headings, *clocks], cells), ""]
    return "\n".join(lines).rstrip("\n")


def _together(
    rows: Mapping[str, Any], drafter: str, texts: Sequence[str], temperature: float, clock: str
) -> str:
    """Return the cell of a drafter for several texts at once: there is less chance in it than in each by itself."""
    keys = [f"{drafter}/{text}/{temperature:g}" for text in texts]
    groups = [group for key in keys if key in rows for group in rows[key]["groups"]]
    return _spoken({"groups": groups}, clock) if groups else ""


def _spoken(row: Mapping[str, Any], clock: str = "wall") -> str:
    value, bounds = speed(row, clock)
    ends = f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""
    return f"{value:.2f}x{ends} ({answer_alone(row, clock)[0]:.2f}x)"


def _missed(rows: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows whose figure is below the aim by the wall clock."""
    return [row for row in rows.values() if speed(row)[0] < WANTED]


def _places(found: Sequence[tuple[float, Interval | None]]) -> list[str]:
    """Count the rows by where they and their intervals lie: at the aim or above, on either side of it, below."""
    ends = [(value, *(bounds or (-math.inf, math.inf))) for value, bounds in found]
    above = sum(low >= WANTED for _, low, _ in ends)
    below = sum(high < WANTED for _, _, high in ends)
    missed = sum(value < WANTED for value, _, _ in ends) - below
    return list(map(str, (above, len(ends) - above - missed - below, missed, below)))


def _equal(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many texts are the target's own, token by token, and how many there are."""
    groups = [group for row in rows for group in row["groups"]]
    equal, answers = (sum(int(g.get(what, 0)) for g in groups) for what in ("equal", "answers"))
    return equal, answers


def _cells(rows: Mapping[float, Mapping[str, Any]], name: str) -> list[str]:
    speeds, drafts = [], []
    for row in rows.values():
        speeds.append(_spoken(row))
        count = max(row.get("drafts", 0), 1)
        share = row.get("drafts", 0) / max(row.get("rounds", 0), 1)
        drafts.append(
            f"{100 * share:.0f} %; {row.get('drafted', 0) / count:.1f}, {row.get('kept', 0) / count:.1f}"
        )
    same = ["{} of {}".format(*_equal([row])) for t, row in rows.items() if t == 0]
    return [name, *speeds, *drafts, *same]


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
        problems=(8, "of each row"),
        drafters=(list(DRAFTERS), "which of them"),
        texts=(list(TEXTS), "which of them"),
        temperatures=[0.0, 0.6],
        turns=(
            3,
            "in which each problem is solved in both ways, each beginning with nothing learned",
        ),
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
