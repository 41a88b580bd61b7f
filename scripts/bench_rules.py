"""Measure the cost of a token rule's own arithmetic, beside speculative sampling's, without any model pass.

    python scripts/bench_rules.py [--rounds 200] [--vocabularies 704 151936] [--width 4096]

Each rule judges drafts of five tokens and trees of 32 nodes, over rows of a model of that
size: 70 % of the drafted tokens are the target's likeliest, the others among its next nine. The pass itself
is answered from memory and not timed; only the time between the pass and the verdict
counts. Medians of this process's CPU time, in milliseconds, go to results/rules.json.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_kit import token_kit
from rich.console import Console
from script_kit import parser, table

from semspec.calibration.arc import Setting
from semspec.decoding.arc_bound import Constants
from semspec.decoding.whitening import Whitened
from semspec.protocols import Rule, RuleSession
from semspec.rules.arc import Arc, Known
from semspec.rules.fuzzy import Fuzzy
from semspec.rules.lossless import Lossless
from semspec.rules.topk_delta import TopKDelta
from semspec.rules.typical import Typical
from semspec.storage import provenance
from semspec.storage.files import write_json
from semspec.types import Answer, Context, Draft, Query, Read, Sampling, What

PASS = 39.0  # ms: a target pass of the size that the papers time on a GPU
LIKELIEST = 0.7  # of the drafted tokens
SAMPLING = Sampling(temperature=1.0)
CHAIN = [-1, 0, 1, 2, 3]
TREE = [-1, -1, -1, -1, *(n // 2 for n in range(28))]  # four below the root, then two below each
SHAPES = {"chain of 5": CHAIN, "tree of 32": TREE}


def rules(width: int) -> Mapping[str, Rule]:
    setting = Setting(1.0, Constants(c_s=0.01, alpha_kappa=0.1, tau=1.79))
    known = Known(setting, Whitened(torch.ones(width)), frozenset())
    return {
        "lossless": Lossless(),
        "arc": Arc(theta=0.3).bound(known=known),
        "typical": Typical(),
        "topk_delta": TopKDelta(),
        "fuzzy": Fuzzy(),
    }


class Passes:
    """Stands in for a target: answers round after round from a few stored passes."""

    def __init__(self, vocabulary: int, width: int) -> None:
        made = torch.Generator().manual_seed(0)
        self.vocabulary = vocabulary
        self.table = torch.randn(4096, width, generator=made)
        logits = torch.randn(4, len(TREE) + 1, vocabulary, generator=made) * 2.5
        self.probs = logits.softmax(-1)
        self.likeliest = self.probs.topk(10)

    def draft(self, number: int, parents: list[int], rng: random.Random) -> Draft:
        ids = self.likeliest.indices[number % 4]
        rank = [0 if rng.random() < LIKELIEST else rng.randrange(1, 10) for _ in parents]
        tokens = [int(ids[parent + 1, r]) for parent, r in zip(parents, rank, strict=True)]
        chain = parents == CHAIN
        probs = self.probs[(number + 1) % 4, : len(parents)] if chain else None
        return Draft(tokens, list(range(1, len(tokens) + 1)), probs, None if chain else parents)

    def answer(self, number: int, query: Query) -> Answer:
        return Answer(values={read: self._read(number, read, query) for read in query.reads})

    def _read(self, number: int, read: Read, query: Query) -> Any:
        rows = len(query.tokens) + 1
        if read.what is What.EMBEDDINGS:
            return self.table[torch.tensor(query.tokens) % len(self.table)]
        if read.what is What.TOP_K:
            values, ids = self.likeliest
            return ids[number % 4, :rows, : read.k], values[number % 4, :rows, : read.k].log()
        assert read.what is What.PROBS, read
        return self.probs[number % 4, :rows]


def judging(session: RuleSession, passes: Passes, number: int, draft: Draft) -> float:
    """Return the CPU seconds of one verdict; the clock is stopped while answers are made."""
    plan = session.judge(Context(number, [1, 2, 3]), draft)
    took, send = 0.0, None
    while True:
        began = time.thread_time()
        try:
            query = plan.send(send)
        except StopIteration:
            return took + time.thread_time() - began
        took += time.thread_time() - began
        assert isinstance(query, Query)
        send = passes.answer(number, query)


def measured(rounds: int, vocabulary: int, width: int) -> Iterator[dict[str, Any]]:
    passes = Passes(vocabulary, width)
    for shape, parents in SHAPES.items():
        took: dict[str, list[float]] = {}
        rng = random.Random(0)
        kit = token_kit(SAMPLING, rng)
        sessions = {name: rule.open(kit) for name, rule in rules(width).items()}
        for number in range(rounds):
            draft = passes.draft(number, parents, rng)
            for name, session in sessions.items():  # in turn: load affects all alike
                if name == "fuzzy" and draft.probs is None:
                    continue
                took.setdefault(name, []).append(judging(session, passes, number, draft))
        lossless = median(took["lossless"])
        for name, seconds in took.items():
            own = median(seconds)
            yield {
                "vocabulary": vocabulary,
                "draft": shape,
                "rule": name,
                "ms": 1e3 * own,
                "beyond_lossless_ms": 1e3 * (own - lossless),
                "share_of_pass": 1e3 * own / PASS,
            }


def main() -> int:
    sizes, json = [704, 151_936], Path("results/rules.json")
    a = parser(__doc__, rounds=200, vocabularies=sizes, width=4096, json=json).parse_args()
    torch.set_num_threads(1)
    rows = [r for v in a.vocabularies for r in measured(a.rounds, v, a.width)]
    names = ("vocabulary", "draft", "rule")
    numbers = ("ms per verdict", "more than lossless", f"share of a pass of {PASS:g} ms")
    shown = table("one thread", *names, *numbers, names=len(names))
    for row in rows:
        share, beyond = f"{100 * row['share_of_pass']:.1f} %", f"{row['beyond_lossless_ms']:+.2f}"
        vocabulary = f"{row['vocabulary']:,}"
        shown.add_row(vocabulary, row["draft"], row["rule"], f"{row['ms']:.2f}", beyond, share)
    Console(width=100).print(shown)
    settings = {"width": a.width, "rounds": a.rounds, "pass_ms": PASS}
    write_json(a.json, {"provenance": provenance.collect(), **settings, "rules": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
