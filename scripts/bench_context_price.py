"""Measure how well the cost model predicts passes of the embedded target after short and long contexts.

    python scripts/bench_context_price.py [--rounds 20] [--fitted 1900]

Sizes, kinds and contexts come in random order. The cost model sees only passes after at most ``--fitted`` positions.
The medians of all passes are then compared with its predictions, and with those of its curves without the context. Seconds are CPU time of this thread.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from itertools import product
from statistics import median
from typing import Any

import torch
from bench_engine import random_tokens
from rich.console import Console
from script_kit import parser, table

from semspec.decoding.costs import READ, TREE, WRITE, Costs, kind_of, size_of
from semspec.engines._lean.engine import HfEngine
from semspec.engines.hf import Hf
from semspec.storage.packaged import beside_package
from semspec.types import PROBS, Context, Generate, Query, Sampling

CONTEXTS = (100, 200, 400, 700, 1000, 1300, 1600, 1900)
SHAPES = (*((READ, n) for n in (1, 4, 16, 32)), (TREE, 16), (TREE, 32), (WRITE, 1), (WRITE, 16))
SAMPLING = Sampling(temperature=0.6)


def measured(
    engine: HfEngine, rounds: int, fitted: int
) -> tuple[Costs, dict[tuple[str, int, int], float]]:
    """Return a cost model that has seen contexts of up to ``fitted`` positions, and the seconds of each case."""
    costs, seconds = Costs(), defaultdict[tuple[str, int, int], list[float]](list)
    text, order = random_tokens(engine, max(CONTEXTS)), random.Random(0)
    for turn in range(-1, rounds):  # the first one warms up
        for length in order.sample(CONTEXTS, len(CONTEXTS)):
            context = Context(turn * len(text) + length, text[:length])
            engine.answer([Query("target", context, SAMPLING, order, tokens=[5], reads=(PROBS,))])
            for kind, size in order.sample(SHAPES, len(SHAPES)):
                query = _query(context, kind, size, order)
                began = time.thread_time()
                (answer,) = engine.answer([query])
                took = time.thread_time() - began
                if turn < 0:
                    continue
                assert (kind_of(query), size_of(query, answer)) == (kind, size)
                seconds[kind, size, length].append(took)
                if length <= fitted:
                    behind = length + (size / 2 if kind == WRITE else 0)
                    costs.add("target", kind, 1, size, took, behind)
            engine.forget(context)
    return costs, {case: median(found) for case, found in seconds.items()}


def _query(context: Context, kind: str, size: int, order: random.Random) -> Query:
    """Return a question that feeds, or has the model write, this many tokens after a context."""
    asked = "target", context, SAMPLING, random.Random(1)
    if kind == WRITE:
        return Query(*asked, generate=Generate(size))
    # different tokens each time; the context's last token is fed with them
    tokens = [order.randrange(10, 300) for _ in range(size - 1)]
    parents = [(node - 1) // 2 for node in range(size - 1)] if kind == TREE else None
    return Query(*asked, tokens=tokens, parents=parents, reads=(PROBS,))


def shown(costs: Costs, seconds: dict[tuple[str, int, int], float]) -> list[list[str]]:
    """Return a line for each kind and size: seconds, and the error of predictions with and (without) the context."""
    lines: list[list[str]] = []
    for kind, size in SHAPES:
        curve = costs.curves["target", kind, 1]
        line = [kind, str(size)]
        for length in CONTEXTS:
            real = seconds[kind, size, length]
            known, without = curve.at(size, length) / real - 1, curve.at(size) / real - 1
            line.append(f"{1e3 * real:.1f} ms: {known:+.0%} ({without:+.0%})")
        lines.append(line)
    return lines


def worst(costs: Costs, seconds: dict[tuple[str, int, int], float]) -> tuple[float, float]:
    """Return the largest error of predictions, with the context and without."""
    off: list[tuple[float, float]] = []
    for (kind, size), length in product(SHAPES, CONTEXTS):
        curve, real = costs.curves["target", kind, 1], seconds[kind, size, length]
        off.append((abs(curve.at(size, length) / real - 1), abs(curve.at(size) / real - 1)))
    return max(known for known, _ in off), max(without for _, without in off)


def main() -> int:
    given: Any = parser(__doc__, rounds=20, fitted=max(CONTEXTS)).parse_args()
    torch.set_num_threads(1)
    engine = Hf().load(str(beside_package("hub_artifacts") / "tiny-target"))
    engine.stop_ids = frozenset()
    costs, seconds = measured(engine, given.rounds, given.fitted)
    engine.close()
    heads = ["kind", "tokens", *(f"{length} positions" for length in CONTEXTS)]
    console = Console(width=240)
    lines = table("", *heads)
    for line in shown(costs, seconds):
        lines.add_row(*line)
    console.print(lines)
    known, without = worst(costs, seconds)
    console.print(f"Largest error: {known:.0%}; {without:.0%} if the context's price is ignored.")
    for (_, kind, _), curve in sorted(costs.curves.items()):
        price = curve.price
        console.print(
            f"{kind}: {1e6 * price.fetched:.2f} us per position, and {1e6 * price.computed:.3f} for each token"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
