"""Measure what passes over a few tokens cost, in plain tokens, and what a round costs besides them.

    python scripts/bench_passes.py [--rounds 200] [--problems 5] [--out runs/passes.json]

A plain token is one of many that the target writes after the same context. Passes take turns with it, so
that the machine's load affects all alike; figures are medians of this thread's CPU time.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from bench_engine import random_tokens
from rich.console import Console
from script_kit import parser, table

from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.drafters import eagle3
from semspec.drafters.eagle3 import Eagle3Session
from semspec.engines.hf import Hf
from semspec.loading.settled import settle
from semspec.protocols import Engine
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.files import write_json
from semspec.storage.packaged import beside_package
from semspec.types import Context, Generate, Query, Read, Sampling, What

T = TypeVar("T")
DRAFTED = (1, 3, 9, 20, 38)
CONTEXT, PLAIN = 256, 16  # tokens of the context, and written at a time by plain decoding
SAMPLING = Sampling(temperature=0.6)
ROUNDS = {
    "prompt_lookup, chain": ("draft=prompt_lookup", "accept=lossless"),
    "lm, chain": ("draft=lm", "accept=lossless", "draft_length=5"),
    "lm, tree": ("draft=lm", "tree=dynamic", "accept=lossless"),
    "EAGLE-3, tree": ("draft=eagle3", "accept=lossless"),
    "EAGLE-3, pruned by ARC": ("draft=eagle3", "accept=arc", "prune=entropy"),
}


def bench_passes(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the cost of passes in plain tokens, by kind and by number of tokens drafted."""
    engine = Hf().load(str(folder))
    context = Context(0, random_tokens(engine, CONTEXT))
    text = random_tokens(engine, max(DRAFTED), 1)
    engine.stop_ids = frozenset()  # every run has the same length
    rows = (Read(What.PROBS),)  # requested, so that a draft is fed again each time
    cases: dict[tuple[str, int], dict[str, Any]] = {
        ("written", 1): {"generate": Generate(1)},
        ("read", 0): {"reads": rows},
    }
    for count in DRAFTED:
        cases["chain", count] = {"tokens": text[:count], "reads": rows}
        cases["tree", count] = cases["chain", count] | {"parents": _tree(count)}
    costs: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    plain: list[float] = []
    for number in range(-3, rounds):  # the first ones warm up
        tokens = _seconds(engine, _query(context, generate=Generate(PLAIN + 1)))
        first = _seconds(engine, _query(context, generate=Generate(1)))
        found = {case: _seconds(engine, _query(context, **asked)) for case, asked in cases.items()}
        if number >= 0:
            plain.append((tokens - first) / PLAIN)
            for case, seconds in found.items():
                costs[case].append(seconds)
    engine.close()
    token = median(plain)
    result: dict[str, Any] = {"plain_token_ms": 1e3 * token}
    for (kind, count), seconds in costs.items():
        result.setdefault(kind, {})[count] = median(seconds) / token
    return result


def _tree(count: int) -> list[int]:
    """Return a tree with two nodes below the root, and two below each."""
    return [node // 2 - 1 for node in range(count)]


def _query(context: Context, **more: Any) -> Query:
    return Query("target", context, SAMPLING, random.Random(0), **more)


def _seconds(engine: Engine, query: Query) -> float:
    began = time.thread_time()
    engine.answer([query])
    return time.thread_time() - began


class Meter:
    """Adds up the CPU time of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function that does what ``call`` does, and counts its time."""

        def counted(*args: Any) -> T:
            began = time.thread_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.thread_time() - began

        return counted


class Metered:
    """Wraps an engine and counts the time of its answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.meter = engine, Meter()
        self.answer = self.meter.of(engine.answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class MeteredHead(Eagle3Session):
    """An EAGLE-3 session that counts the time of its head, where tokens are sampled."""

    meter = Meter()
    rows = meter.of(Eagle3Session.rows)
    _follow = meter.of(Eagle3Session._follow)


def outside_target(options: Sequence[str], problems: int) -> Mapping[str, float]:
    """Return what a round of a fixed size costs, besides the target's passes, and besides those of a draft model or head, too."""
    config = build(compose(expand_shorthands(["split=token", "adaptive=false", *options])))
    todo = list(islice(config.benchmark.problems(), problems + 1))
    with patch.object(eagle3, "Eagle3Session", MeteredHead), Solver(config) as solver:
        engines = solver.engines
        for name, engine in list(engines.items()):
            engines[name] = Metered(engine)
        meters = [MeteredHead.meter, *(engine.meter for engine in engines.values())]
        list(solver.solve(todo[:1], "speculative"))  # warm-up
        settle()  # as a run does
        for meter in meters:
            meter.seconds = 0.0
        began = time.thread_time()
        rounds = sum(len(s.outcome.rounds) for s in solver.solve(todo[1:], "speculative"))
        whole, models = time.thread_time() - began, sum(meter.seconds for meter in meters)
        outside = whole - engines["target"].meter.seconds
    return {
        "milliseconds_a_round": 1e3 * outside / rounds,
        "share": outside / whole,
        "outside_models_ms": 1e3 * (whole - models) / rounds,
        "whole_ms": 1e3 * whole / rounds,
        "rounds": rounds,
    }


def show_passes(result: Mapping[str, Any], console: Console) -> None:
    token = result["passes"]["plain_token_ms"]
    costs = table(f"cost of a pass in plain tokens ({token:.2f} ms)", "tokens", "chain", "tree")
    for kind, name in (("written", "one token written"), ("read", "no draft, its row read")):
        costs.add_row(name, *(f"{cost:.2f}" for cost in result["passes"][kind].values()), "")
    for count in DRAFTED:
        both = (f"{result['passes'][kind][count]:.2f}" for kind in ("chain", "tree"))
        costs.add_row(f"{count} drafted", *both)
    console.print(costs)
    headings = ("", "ms per round", "outside the target", "share", "outside all models")
    outside = table("rounds of a fixed size", *headings)
    for name, f in result["outside_target"].items():
        times = (f["whole_ms"], f["milliseconds_a_round"], f["outside_models_ms"])
        whole, rest, loop = (f"{ms:.2f}" for ms in times)
        outside.add_row(name, whole, rest, f"{100 * f['share']:.0f} %", loop)
    console.print(outside)


def main() -> None:
    given = parser(__doc__, rounds=200, problems=5, out=Path("runs/passes.json")).parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"provenance": provenance.collect()}
    result["passes"] = bench_passes(beside_package("hub_artifacts") / "tiny-target", given.rounds)
    result["outside_target"] = {
        name: outside_target(options, given.problems) for name, options in ROUNDS.items()
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, json.loads(json.dumps(result)))
    show_passes(result, Console())


if __name__ == "__main__":
    sys.exit(main())
