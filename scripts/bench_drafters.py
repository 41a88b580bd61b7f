"""Measure what drafting without a draft model costs, and how much of it is accepted.

    python scripts/bench_drafters.py [--rounds 60] [--lengths 1024,8192,32768]     cost of drafting alone
    python scripts/bench_drafters.py --pair [--problems 20]                        acceptance

Drafting alone needs no model: it uses a text that partly repeats itself, states of width 5,120 and a
vocabulary of 151,936. Both CPU time of this process and wall time are given, because other work on the
same cores shows in the latter. Each round counts with the lowest time of five runs. Each result goes to results/drafters.json at once, and tables to docs/measurements/drafters.md.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import bench_kit as bench
import torch
from torch import Tensor

from semspec import registry
from semspec.config import build, compose
from semspec.drafters.dresd import DresdSession
from semspec.drafters.rest import RestSession
from semspec.protocols import DraftSession, Kit
from semspec.report.terminal import open_console
from semspec.runner import execute
from semspec.types import LAST_STATES, Answer, Context, Query, Read, Room, Sampling, Seen, What

NOVEL = 0.05  # of the target's top tokens, those that need not occur in the text
DRAFTERS = "prompt_lookup suffix pld_plus adapld token_recycling logitspec hybrid".split()
FROM_CORPORA = {"rest": RestSession, "dresd": DresdSession}  # on the pair: embedded ones
ALL = (*DRAFTERS, *FROM_CORPORA)
BY_MEANING = "adapld by meaning"  # each round ends with a new token, and many are similar to it
KINDS = 4  # of tokens there: those of one kind have a cosine of about 0.6


@cache
def states() -> bench.States:
    return bench.States(bench.VOCABULARY, bench.WIDTH)


@cache
def corpus(name: str) -> Any:
    """Return a store of a text that is similar to the others but not one of them."""
    if name == "rest":
        return bench.sparse_store(bench.repeating_text(bench.TOKENS, random.Random(1)))
    return bench.dense_store(bench.repeating_text(bench.ENTRIES, random.Random(1)), states())


def opened(name: str, kit: Kit) -> DraftSession:
    options = registry.plugin("drafter", name.partition(" ")[0]).cls()
    session: Any = FROM_CORPORA.get(name)
    opened: DraftSession = session(options, corpus(name), kit) if session else options.open(kit)
    return opened


class Rows:
    """Stands in for a target's answers: states and embeddings from one long row of random numbers."""

    def __init__(self, text: Sequence[int], kinds: int = 0) -> None:
        self.kinds = kinds  # of tokens with similar embeddings; 0: none is like another
        self.generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(1 << 20, generator=self.generator)
        self.text = torch.tensor(text)

    def answer(self, query: Query, count: int) -> Answer:
        return Answer(values={read: self._read(read, query, count) for read in query.reads})

    def _read(self, read: Read, query: Query, count: int) -> Any:
        if read == LAST_STATES:  # what it looks up is where the same token comes next
            start = len(query.context) - 1 if query.rows_from is None else query.rows_from
            following = self.text[start + 1 : start + 1 + count].tolist()
            return torch.from_numpy(states()(following))[:, None]
        if read.what is What.EMBEDDINGS:
            return torch.stack([self._embedding(token) for token in query.tokens])
        if read.what is What.HIDDEN:
            start = int(torch.randint(1000, (1,), generator=self.generator))
            return self.noise.as_strided((count, 1, bench.WIDTH), (7, bench.WIDTH, 1), start)
        shape = (count, read.k)
        known = self.text[torch.randint(len(self.text), shape, generator=self.generator)]
        other = torch.randint(bench.VOCABULARY, shape, generator=self.generator)
        novel = torch.rand(shape, generator=self.generator) < NOVEL
        ids: Tensor = torch.where(novel, other, known)
        return ids, torch.zeros(shape)

    def _embedding(self, token: int) -> Tensor:
        own = self.noise[3 * token : 3 * token + bench.WIDTH]
        if not self.kinds:
            return own
        start = 3 * bench.VOCABULARY + bench.WIDTH * (1 + token % self.kinds)
        return self.noise[start : start + bench.WIDTH] + 0.8 * own


def timed_draft(
    session: DraftSession, context: Context, room: Room, rows: Rows
) -> tuple[int, bench.Clock]:
    """Return the tokens drafted, and the time apart from the target's answers."""
    clock, plan, answer = bench.Clock(), session.draft(context, room), None
    try:
        while True:
            with clock:
                query = plan.send(answer)
            assert isinstance(query, Query)
            answer = rows.answer(query, len(context) - (query.rows_from or 0))
    except StopIteration as stop:
        return len(stop.value.tokens), clock


def drafting_alone(name: str, length: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Measure the same rounds repeatedly; the lowest time of each counts, since other work only adds to it."""
    runs = [one_run(name, length, rounds) for _ in range(repeats)]
    least = [[*map(min, zip(*(run[part] for run in runs), strict=True))] for part in "cw"]
    return {
        **bench.spread(*least),
        "cpu_ms_mean": 1e3 * sum(least[0]) / rounds,
        "drafted": sum(runs[0]["drafted"]) / rounds,
        "repeats": repeats,
        "load": os.getloadavg()[0],
        "opening_us_per_token": 1e6 * min(run["opening"] for run in runs) / length,
    }


def one_run(name: str, length: int, rounds: int) -> dict[str, Any]:
    """Measure a prompt of ``length`` tokens, then rounds that accept one to five tokens each."""
    rng = random.Random(0)
    text = bench.repeating_text(length + 6 * rounds, rng)
    by_meaning = name == BY_MEANING
    rows, room = Rows(text, KINDS * by_meaning), Room(100, 100, 1)
    unseen = iter(sorted(set(range(bench.VOCABULARY)).difference(text), reverse=True))
    kit = bench.token_kit(Sampling(0.0), rng)
    context = Context(1, text[:length])
    session = opened(name, kit)
    _, opening = timed_draft(session, context, room, rows)
    run: dict[str, Any] = {"opening": opening.cpu, "c": [], "w": [], "drafted": []}
    for _ in range(rounds):
        accepted = rng.randrange(1, 6)
        if by_meaning:
            text[len(context) + accepted - 1] = next(unseen)
        query = Query("target", context, kit.sampling, rng, reads=session.watches)
        seen = Seen(len(context) - 1, accepted, rows.answer(query, accepted).values)
        context.extend(text[len(context) : len(context) + accepted])
        with bench.Clock() as watching:
            if session.watches:
                session.see(seen)
        count, clock = timed_draft(session, context, room, rows)
        run["c"].append(clock.cpu + watching.cpu)
        run["w"].append(clock.wall + watching.wall)
        run["drafted"].append(count)
    return run


def on_the_pair(name: str, temperature: float, problems: int) -> dict[str, Any]:
    """Measure tau and reuse on the embedded pair; without plain runs, and so without speed-ups."""
    rule = "lossless" if temperature else "greedy"
    options = [f"draft={name}", f"accept={rule}", "split=token", "plain=false", "quiet=true"]
    options += ["draft_length=5"] if name == "lm" else []
    config = build(compose([*options, f"temperature={temperature}", f"problems={problems}"]))
    with tempfile.TemporaryDirectory() as folder:
        result = execute(config, {"bench": name}, Path(folder), open_console(quiet=True))
    kept = ("accept_length", "pass_at_1", "target_passes", "tokens", "acceptance_rate_tokens")
    return {key: result[key] for key in kept} | {"reuse": result["reuse"], "problems": problems}


def main(arguments: Sequence[str] | None = None) -> int:
    drafters = ("", "names, separated by commas; default: all")
    known = bench.options(__doc__, pair=False, problems=20, rounds=60, repeats=5, drafters=drafters)
    known.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    given = known.parse_args(arguments)
    figures = bench.Figures(given.out, "pair" if given.pair else "alone")
    every = ALL if given.pair else (*ALL, BY_MEANING)
    for name in given.drafters.split(",") if given.drafters else every:
        if given.pair:
            for t in (0.0, 1.0):
                figures.keep(name, f"T={t:g}", on_the_pair(name, t, given.problems))
            continue
        for length in given.lengths.split(","):
            alone = drafting_alone(name, int(length), given.rounds, given.repeats)
            figures.keep(name, length, alone)
    figures.write_tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
