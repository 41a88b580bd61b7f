"""Is drafting ever slower than not drafting? Every drafter, lossless, in turn with the target alone.

    python scripts/bench_adaptive.py [--drafters lm,suffix] [--benchmarks synthetic,editing] [--problems 6]

Each problem is solved by the target alone, with ``adaptive=true`` (and, with --fixed, with ``adaptive=false``), one
after the other, in this process: ratios of CPU time (and wall time) are of the same minutes. With --cpu
the engines' own clocks count CPU time, too: what drafts cost is then not what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console
from script_kit import parser, table

from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.engines.pool import Engines
from semspec.protocols import BenchmarkProblem
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.files import write_json

DRAFTERS = {
    "lm": ("draft=lm",),
    "lm tree": ("draft=lm", "tree=dynamic"),
    "lm sampled tree": ("draft=lm", "tree=sampled"),
    "eagle3": ("draft=eagle3",),
    "eagle3 chain": ("draft=eagle3", "tree=chain"),
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
BENCHMARKS = ("synthetic", "editing", "grounded", "periodic")
PERIODS = ("a b ", "one two three ", "x=1; ", "Monday ", "to be or not ", "7 + 7 = 14, ")


def problems_of(benchmark: str, count: int) -> Iterator[BenchmarkProblem]:
    """Yield problems of a benchmark, or questions that repeat one phrase."""
    if benchmark == "periodic":
        for number in range(count):
            phrase = PERIODS[number % len(PERIODS)]
            yield BenchmarkProblem(f"periodic-{number}", f"Go on: {phrase * 24}".strip())
        return
    made = build(compose([f"benchmark={benchmark}"])).benchmark
    yield from islice(made.problems(), count)


def measured(
    name: str, benchmark: str, temperature: float, given: argparse.Namespace, engines: Engines
) -> dict[str, float]:
    """Solve problems in every way in turn; return seconds and tokens of each."""
    copier = ["model=tiny-copier"] * (benchmark != "synthetic" and name in COPYING)
    common = [*copier, *DRAFTERS[name], "accept=lossless", "split=token"]
    common.append(f"temperature={temperature}")
    common += [f"max_new_tokens={given.tokens}", f"concurrency={given.concurrency}", "quiet=true"]
    ways = {"adaptive": ["adaptive=true"]} | ({"fixed": ["adaptive=false"]} if given.fixed else {})
    solvers = {
        way: Solver(build(compose(expand_shorthands([*common, *own]))), shared=engines)
        for way, own in ways.items()
    }
    for solver in solvers.values():
        solver.fetch()
    for solver in solvers.values():
        solver.load()
    todo = list(problems_of(benchmark, given.problems + given.warm))
    figures: dict[str, float] = {}
    size = given.concurrency
    for start in range(0, len(todo), size):
        group = todo[start : start + size]
        turns = [("plain", solvers["adaptive"]), *solvers.items()]
        for way, solver in turns[:: -1 if start // size % 2 else 1]:
            cpu, wall = time.process_time(), time.perf_counter()
            mode = "plain" if way == "plain" else "speculative"
            done = list(solver.solve(group, mode))  # type: ignore[arg-type]
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if start < given.warm:
                continue
            tokens = sum(len(one.outcome.tokens) for one in done)
            rounds = [r for one in done for r in one.outcome.rounds]
            drafted, kept = (
                sum(len(part) for part in parts)
                for parts in ([r.drafted for r in rounds], [r.kept for r in rounds])
            )
            for key, value in (
                ("cpu", cpu), ("wall", wall), ("tokens", tokens), ("rounds", len(rounds)),
                ("drafts", sum(bool(r.drafted) for r in rounds)), ("drafted", drafted),
                ("kept", kept),
            ):  # fmt: skip
                figures[f"{way} {key}"] = figures.get(f"{way} {key}", 0.0) + value
    for way in ways:
        for clock in ("cpu", "wall"):
            alone, own = (figures[f"{w} {clock}"] / figures[f"{w} tokens"] for w in ("plain", way))
            figures[f"{way} {clock} ratio"] = alone / own
    return figures


def main() -> int:
    lists = (f"{','.join(DRAFTERS)}", f"{','.join(BENCHMARKS)}")
    known = parser(__doc__, problems=6, out=Path("runs/bench_adaptive.json"))
    known.add_argument("--drafters", default=lists[0])
    known.add_argument("--benchmarks", default=lists[1])
    known.add_argument("--temperatures", default="0,0.6")
    known.add_argument("--tokens", type=int, default=256)
    known.add_argument("--concurrency", type=int, default=1)
    known.add_argument("--warm", type=int, default=1, help="problems that are not counted")
    known.add_argument("--fixed", action="store_true", help="also with adaptive=false")
    known.add_argument(
        "--cpu", action="store_true", help="decide by CPU time: other work is running here"
    )
    given = known.parse_args()
    if given.cpu:
        vars(time)["perf_counter"] = time.process_time
    console = Console()
    shown = table("plain seconds a token over drafted ones", "", "CPU", "wall", "drafts", "drafted", "kept")  # fmt: skip
    every: dict[str, dict[str, float]] = {}
    with Engines() as engines:
        for name in given.drafters.split(","):
            for benchmark in given.benchmarks.split(","):
                for temperature in map(float, given.temperatures.split(",")):
                    row = f"{name}, {benchmark}, T={temperature:g}"
                    every[row] = f = measured(name, benchmark, temperature, given, engines)
                    for way in ("adaptive", "fixed") if given.fixed else ("adaptive",):
                        share = f[f"{way} drafts"] / max(f[f"{way} rounds"], 1)
                        drafts = max(f[f"{way} drafts"], 1)
                        cells = (
                            f"{f[f'{way} cpu ratio']:.2f}x",
                            f"{f[f'{way} wall ratio']:.2f}x",
                            f"{100 * share:.0f} %",
                            f"{f[f'{way} drafted'] / drafts:.1f}",
                            f"{f[f'{way} kept'] / drafts:.1f}",
                        )
                        shown.add_row(f"{row}{' fixed' if way == 'fixed' else ''}", *cells)
                        console.print(f"[dim]{row} {way} {' '.join(cells)}[/]")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, {"provenance": provenance.collect(), "rows": every})
    console.print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
