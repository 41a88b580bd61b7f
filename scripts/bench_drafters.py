"""What drafting without a draft model costs, and how much of it is accepted.

    python scripts/bench_drafters.py [--rounds 60] [--lengths 1024,8192,32768]     cost of drafting alone
    python scripts/bench_drafters.py --pair [--problems 20]                        acceptance

Drafting alone needs no model: a text that repeats itself in part, states of width 5,120 and a
vocabulary of 151,936. Both CPU time of this process and wall time are told, since other work on the
same cores shows in the latter; of five runs over the same rounds the least counts, for each round. Results go to results/drafters.json, each as soon as it is there, and as tables to docs/drafters.md.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import bench_corpora
import torch
from rich.console import Console
from torch import Tensor

from semspec import registry
from semspec.config import build, compose
from semspec.drafters.dresd import LAST
from semspec.protocols import DraftSession, Kit
from semspec.runner import execute
from semspec.splitters.token import TokenBoundary
from semspec.storage import provenance
from semspec.storage.files import read_json, write_json
from semspec.storage.packaged import beside_package
from semspec.types import Answer, Context, Query, Read, Room, Sampling, Seen, What

VOCABULARY, WIDTH, LAYERS = 151_936, 5_120, 64
NOVEL = 0.05  # of the target's top tokens, those that the text need not hold
MARKS = ("<!-- figures -->", "<!-- end of figures -->")
PARTS = ("found", "origin")
DRAFTERS = (
    "prompt_lookup",
    "suffix",
    "pld_plus",
    "adapld",
    "token_recycling",
    "logitspec",
    "hybrid",
)
FROM_CORPORA = ("rest", "dresd")  # on the pair with the embedded datastores
ALL = (*DRAFTERS, *FROM_CORPORA)
BY_MEANING = "adapld by meaning"  # each round ends with a new token, and many are like it
KINDS = 4  # of tokens there: those of one kind have a cosine of about 0.6


def repeating_text(length: int, rng: random.Random) -> list[int]:
    """Half of it copied from before in pieces of 5 to 50 tokens, the rest with Zipf's law."""
    text: list[int] = []
    while len(text) < length:
        count = rng.randrange(5, 50)
        if len(text) > 200 and rng.random() < 0.5:
            start = rng.randrange(len(text) - count)
            text += text[start : start + count]
        else:  # rank r with a probability of about 1 / r
            text += [int(VOCABULARY ** rng.random()) - 1 for _ in range(count)]
    return text[:length]


def token_kit(sampling: Sampling, rng: random.Random) -> Kit:
    """What a session needs where tokens are the unit and there is no text."""
    return Kit(
        prompt="",
        sampling=sampling,
        boundary=TokenBoundary,
        stop_ids=frozenset(),
        piece=str,
        decode=str,
        encode=lambda text: [],
        rng=rng,
        trees=True,
        layers=LAYERS,
    )


@cache
def states() -> bench_corpora.States:
    return bench_corpora.States(VOCABULARY, WIDTH)


@cache
def corpus(name: str) -> Any:
    """A store of a text that is like the others and none of them."""
    if name == "rest":
        return bench_corpora.sparse(repeating_text(bench_corpora.TOKENS, random.Random(1)))
    return bench_corpora.dense(repeating_text(bench_corpora.ENTRIES, random.Random(1)), states())


def opened(name: str, kit: Kit) -> DraftSession:
    if name in FROM_CORPORA:
        session: DraftSession = bench_corpora.session(name, corpus(name), kit)
        return session
    plugin = registry.plugin("drafter", name.partition(" ")[0])
    fresh: DraftSession = plugin.cls().open(kit)
    return fresh


class Rows:
    """What a target would have said: states and embeddings from one long row of random numbers."""

    def __init__(self, text: Sequence[int], kinds: int = 0) -> None:
        self.kinds = kinds  # of tokens with similar embeddings; 0: none is like another
        self.generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(1 << 20, generator=self.generator)
        self.text = torch.tensor(text)

    def answer(self, query: Query, count: int) -> Answer:
        return Answer(values={read: self._read(read, query, count) for read in query.reads})

    def _read(self, read: Read, query: Query, count: int) -> Any:
        if read == LAST:  # what it looks up is where the same token comes next
            start = len(query.context) - 1 if query.rows_from is None else query.rows_from
            following = self.text[start + 1 : start + 1 + count].tolist()
            return torch.from_numpy(states()(following))[:, None]
        if read.what is What.EMBEDDINGS:
            return torch.stack([self._embedding(token) for token in query.tokens])
        if read.what is What.HIDDEN:
            start = int(torch.randint(1000, (1,), generator=self.generator))
            return self.noise.as_strided((count, 1, WIDTH), (7, WIDTH, 1), start)
        shape = (count, read.k)
        known = self.text[torch.randint(len(self.text), shape, generator=self.generator)]
        other = torch.randint(VOCABULARY, shape, generator=self.generator)
        novel = torch.rand(shape, generator=self.generator) < NOVEL
        ids: Tensor = torch.where(novel, other, known)
        return ids, torch.zeros(shape)

    def _embedding(self, token: int) -> Tensor:
        own = self.noise[3 * token : 3 * token + WIDTH]
        if not self.kinds:
            return own
        start = 3 * VOCABULARY + WIDTH * (1 + token % self.kinds)
        return self.noise[start : start + WIDTH] + 0.8 * own


class Clock:
    """CPU and wall time of what runs between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall


def timed_draft(
    session: DraftSession, context: Context, room: Room, rows: Rows
) -> tuple[int, Clock]:
    """Tokens drafted, and what it took beside the target's answers."""
    clock, plan = Clock(), session.draft(context, room)
    clock.start()
    try:
        query = next(plan)
        while True:
            clock.stop()
            assert isinstance(query, Query)
            answer = rows.answer(query, len(context) - (query.rows_from or 0))
            clock.start()
            query = plan.send(answer)
    except StopIteration as stop:
        clock.stop()
        return len(stop.value.tokens), clock


def drafting_alone(name: str, length: int, rounds: int, repeats: int) -> dict[str, Any]:
    """The same rounds again and again: of each the least time, as what else runs only adds to it."""
    runs = [one_run(name, length, rounds) for _ in range(repeats)]
    least = [
        [min(times) for times in zip(*(run[part] for run in runs), strict=True)] for part in "cw"
    ]
    cpu = sorted(1e3 * seconds for seconds in least[0])
    return {
        "cpu_ms": median(cpu),
        "cpu_ms_mean": sum(cpu) / len(cpu),
        "cpu_ms_p90": cpu[int(0.9 * (len(cpu) - 1))],
        "wall_ms": 1e3 * median(least[1]),
        "drafted": sum(runs[0]["drafted"]) / rounds,
        "repeats": repeats,
        "load": os.getloadavg()[0],
        "opening_us_per_token": 1e6 * min(run["opening"] for run in runs) / length,
    }


def one_run(name: str, length: int, rounds: int) -> dict[str, Any]:
    """A prompt of ``length`` tokens, then rounds that accept one to five tokens each."""
    rng = random.Random(0)
    text = repeating_text(length + 6 * rounds, rng)
    by_meaning = name == BY_MEANING
    rows, room = Rows(text, KINDS * by_meaning), Room(100, 100, 1)
    unseen = iter(sorted(set(range(VOCABULARY)).difference(text), reverse=True))
    kit = token_kit(Sampling(0.0), rng)
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
        watching = Clock()
        watching.start()
        if session.watches:
            session.see(seen)
        watching.stop()
        count, clock = timed_draft(session, context, room, rows)
        run["c"].append(clock.cpu + watching.cpu)
        run["w"].append(clock.wall + watching.wall)
        run["drafted"].append(count)
    return run


def on_the_pair(name: str, temperature: float, problems: int) -> dict[str, Any]:
    """tau and reuse on the embedded pair; no plain runs, so that nothing is told of speed."""
    rule = "lossless" if temperature else "greedy"
    options = [f"draft={name}", f"accept={rule}", "split=token", "plain=false"]
    options += ["draft_length=5"] if name == "lm" else []
    config = build(compose([*options, f"temperature={temperature}", f"problems={problems}"]))
    config.quiet = True
    with tempfile.TemporaryDirectory() as folder:
        result = execute(config, {"bench": name}, Path(folder), Console(quiet=True))
    told = ("accept_length", "pass_at_1", "target_passes", "tokens", "acceptance_rate_tokens")
    return {key: result[key] for key in told} | {"reuse": result["reuse"], "problems": problems}


def tables(result: dict[str, Any]) -> str:
    """Markdown: the cost of drafting alone, and acceptance on the pair."""
    lines: list[str] = []
    alone = result.get("alone", {})
    if alone:
        repeats = min(row.get("repeats", 1) for rows in alone.values() for row in rows.values())
        lengths = sorted({int(length) for rows in alone.values() for length in rows})
        lines += [
            "Milliseconds a round for drafting alone, without a model (width 5,120, vocabulary 151,936, one"
            " thread): CPU time of the process, median / mean over rounds; of each round the least of"
            f" {repeats} run{'s' * (repeats > 1)} or more. Load: processes that wanted one of the two cores meanwhile.",
            "",
            "| | "
            + " | ".join(f"{n:,} tokens" for n in lengths)
            + " | nodes | a token of the prompt | load |",
            "|---|" + "---|" * (len(lengths) + 3),
        ]
        for name, rows in alone.items():
            own = [rows.get(str(n)) for n in lengths]
            told = [f"{r['cpu_ms']:.3f} / {r['cpu_ms_mean']:.3f}" if r else "" for r in own]
            last = next(r for r in reversed(own) if r)
            learnt = " ... ".join(f"{r['opening_us_per_token']:.1f}" for r in own if r)
            loads = [f"{r['load']:.0f}" for r in own if r and "load" in r]
            lines.append(
                f"| `{name}` | {' | '.join(told)} | {last['drafted']:.0f} | {learnt} us |"
                f" {' / '.join(loads)} |"
            )
        lines.append("")
    pair = result.get("pair", {})
    if pair:
        lines += [
            "tau (tokens gained a verification) on the embedded pair's ordinary problems, how places were"
            " found, and what the accepted path ended with:",
            "",
            "| | T = 0 | T = 1 | found lexically / by meaning / not, T = 1 |"
            " main / branch / successor / mismatch, T = 1 |",
            "|---|---|---|---|---|",
        ]
        for name, rows in pair.items():
            taus = [rows.get(key, {}).get("accept_length") for key in ("T=0", "T=1")]
            reuse = rows.get("T=1", {}).get("reuse") or {}
            shares = [" / ".join(f"{v:.2f}" for v in (reuse.get(k) or {}).values()) for k in PARTS]
            told = [f"{tau:.2f}" if tau else "" for tau in taus]
            lines.append(f"| `{name}` | {' | '.join([*told, *shares])} |")
        lines.append("")
    return "\n".join([*lines, *datastores(result.get("datastores", {}))])


def told_if(row: dict[str, Any], name: str, form: str, unit: str) -> str:
    """A figure with its unit, where it was measured."""
    return format(row[name], form) + unit if name in row else ""


def datastores(told: dict[str, Any]) -> list[str]:
    """The tables of scripts/bench_datastores.py."""
    lines: list[str] = []
    if sparse := told.get("sparse"):
        lines += [
            "A question to a sparse datastore, milliseconds (CPU time, median / 90th percentile), synthetic text:",
            "",
            "| tokens | longest match | with its tree | sorted in | opened in |",
            "|---|---|---|---|---|",
        ]
        for count, row in sorted(sparse.items(), key=lambda item: int(item[0])):
            times = [
                f"{row[k]['cpu_ms']:.3f} / {row[k]['cpu_ms_p90']:.3f}" for k in ("query", "draft")
            ]
            ends = f"{row['sorting_s']:.0f} s | {row['opening_ms']:.1f} ms"
            lines.append(f"| {int(count):,} | {' | '.join(times)} | {ends} |")
        lines.append("")
    dense = [(name, told[name]) for name in ("scann", "faiss") if name in told]
    if dense:
        lines += [
            "A question to a dense datastore, the same, synthetic clustered keys of 64 dimensions, 10 neighbours:",
            "",
            "| index | entries | milliseconds | recall@10 | bytes an entry | built in | hashed in | opened in | first question |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name, rows in dense:
            for count, row in sorted(rows.items(), key=lambda item: int(item[0])):
                time = f"{row['query']['cpu_ms']:.3f} / {row['query']['cpu_ms_p90']:.3f}"
                lines.append(
                    f"| `{name}` | {int(count):,} | {time} | {row['recall_at_10']:.3f} |"
                    f" {row['bytes']:.0f} | {row['building_s']:.0f} s | {told_if(row, 'hashing_s', '.2f', ' s')} |"
                    f" {row['loading_s']:.3f} s | {told_if(row, 'first_ms', '.1f', ' ms')} |"
                )
        lines.append("")
    return lines


def write_tables(text: str, page: Path) -> None:
    """Between the marks of docs/drafters.md."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    parser.add_argument("--drafters", help="all of them, unless they are given")
    default = beside_package("results") / "drafters.json"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    result = read_json(given.out) if given.out.exists() else {}
    kind = "pair" if given.pair else "alone"
    result.setdefault("provenance", {})[kind] = provenance.collect()
    part = result.setdefault(kind, {})
    every = ALL if given.pair else (*ALL, BY_MEANING)
    for name in given.drafters.split(",") if given.drafters else every:
        if given.pair:
            todo = {
                f"T={t:g}": lambda t=t, name=name: on_the_pair(name, t, given.problems)
                for t in (0.0, 1.0)
            }
        else:
            todo = {
                length: lambda length=length, name=name: drafting_alone(
                    name, int(length), given.rounds, given.repeats
                )
                for length in given.lengths.split(",")
            }
        for key, measure in todo.items():
            part.setdefault(name, {})[key] = measure()
            print(name, key, part[name][key], flush=True)
            write_json(given.out, result)
    page = given.out.with_suffix(".md")
    if page.exists():
        write_tables(tables(result), page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
