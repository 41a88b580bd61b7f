"""Synthetic texts and corpora, clocks and tables for the benches of drafting, datastores and rules."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from script_kit import markdown, parser

from semspec.datastores import indices
from semspec.datastores.dense import DenseStore, Projection, open_shards
from semspec.datastores.dense import write_shard as write_dense
from semspec.datastores.sparse import SparseStore, write_shard
from semspec.protocols import Kit
from semspec.report.arms import between
from semspec.splitters.token import TokenBoundary
from semspec.storage import provenance
from semspec.storage.files import read_json, write_json
from semspec.types import Sampling

VOCABULARY, WIDTH, LAYERS = 151_936, 5_120, 64
ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results/drafters.json", ROOT / "docs/measurements/drafters.md"
MARKS = ("<!-- figures -->", "<!-- end of figures -->")
PARTS = ("found", "origin")
TOKENS, ENTRIES, DIMS, DEPTH = 1_000_000, 125_000, 64, 64
SPREAD = 0.5  # of keys about a centre, in each dimension; centres have 1
Floats = NDArray[np.float32]


def repeating_text(length: int, rng: random.Random) -> list[int]:
    """Return tokens, half of them copied from before in pieces of 5 to 50 tokens, the rest with Zipf's law."""
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
    """Return what a session needs where tokens are the unit and there is no text."""
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


def sparse_store(text: Sequence[int]) -> SparseStore:
    with tempfile.TemporaryDirectory() as folder:  # a mapped file outlives its name
        path = Path(folder) / "shard-00000.safetensors"
        write_shard(path, [list(text)], DEPTH)
        return SparseStore.open([path], DEPTH)


class States:
    """A target's last states by the token that comes next, and the keys made from them.

    Key and state of a place are near the centre of the next token, so that neighbours continue alike.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        self.rng = np.random.default_rng(1)
        self.centres = self.rng.standard_normal((vocabulary, DIMS), dtype=np.float32)
        # this many random directions are nearly orthogonal, so they project back what they lift
        directions = self.rng.standard_normal((DIMS, width), dtype=np.float32)
        self.components: Floats = directions / np.float32(width**0.5)

    def keys(self, following: Sequence[int]) -> Floats:
        own = self.centres[np.asarray(following)]
        noise = self.rng.standard_normal(own.shape, dtype=np.float32)
        return own + np.float32(SPREAD) * noise

    def __call__(self, following: Sequence[int]) -> Floats:
        states: Floats = self.keys(following) @ self.components
        return states


def dense_store(text: Sequence[int], states: States) -> DenseStore:
    width = states.components.shape[1]
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    keys = states.keys(text[1:])
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard-00000.safetensors"
        write_dense(path, keys, np.arange(len(keys), dtype=np.int32), text)
        shards = open_shards([path], DIMS)
        own = [shard.keys for shard in shards]
        index = indices.load("scann", indices.build("scann", own), own, path)
    return DenseStore(shards, Projection(zeros, ones, zeros, states.components), index)


class Clock:
    """Adds up the CPU and wall time of what runs inside ``with``."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> Clock:
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall


def timed(ask: Callable[[Any], object], questions: Sequence[Any]) -> dict[str, float]:
    """Return a question's milliseconds, process CPU and wall, after one round to warm up."""
    for question in questions:
        ask(question)
    clocks = []
    for question in questions:
        with Clock() as clock:
            ask(question)
        clocks.append(clock)
    return spread([c.cpu for c in clocks], [c.wall for c in clocks])


def spread(cpu: Sequence[float], wall: Sequence[float]) -> dict[str, float]:
    """Return median and 90th percentile of seconds, in milliseconds."""
    last = sorted(cpu)[int(0.9 * (len(cpu) - 1))]
    return {"cpu_ms": 1e3 * median(cpu), "cpu_ms_p90": 1e3 * last, "wall_ms": 1e3 * median(wall)}


class Figures:
    """Figures in results/drafters.json, each saved at once, and their tables in docs/measurements/drafters.md."""

    def __init__(self, out: Path, kind: str) -> None:
        torch.set_num_threads(1)
        self.out, self.whole = out, read_json(out) or {}
        self.whole.setdefault("provenance", {})[kind] = provenance.collect()
        self.part = self.whole.setdefault(kind, {})

    def keep(self, name: str, key: str, figures: dict[str, Any]) -> None:
        self.part.setdefault(name, {})[key] = figures
        print(name, key, figures, flush=True)
        write_json(self.out, self.whole)

    def write_tables(self) -> None:
        """Write the tables between the marks of the page; only our own files have marks."""
        if self.out == RESULTS:
            page, text = PAGE.read_text(encoding="utf-8"), tables(self.whole).rstrip("\n")
            page = between(page, MARKS, text, "docs/measurements/drafters.md")
            PAGE.write_text(page, encoding="utf-8")


def options(doc: str | None, **known: Any) -> argparse.ArgumentParser:
    """Return a parser with the options for where figures go."""
    return parser(doc, out=RESULTS, **known)


def tables(result: dict[str, Any]) -> str:
    """Return Markdown: drafting alone, acceptance on the pair, datastore queries."""
    stores = result.get("datastores", {})
    parts = {_alone: result.get("alone"), _pair: result.get("pair"), _sparse: stores.get("sparse")}
    found = [part(figures) for part, figures in parts.items() if figures]
    return "\n".join(line for part in [*found, _dense(stores)] for line in part)


def _table(about: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [about, "", *markdown(headings, rows), ""]


def _counted(rows: Mapping[str, Any]) -> list[tuple[int, Any]]:
    return sorted((int(count), row) for count, row in rows.items())


def _alone(alone: Mapping[str, Any]) -> list[str]:
    repeats = min(row.get("repeats", 1) for rows in alone.values() for row in rows.values())
    lengths = sorted({int(length) for rows in alone.values() for length in rows})
    listed = []
    for name, rows in alone.items():
        own = [rows.get(str(n)) for n in lengths]
        times = [f"{r['cpu_ms']:.3f} / {r['cpu_ms_mean']:.3f}" if r else "" for r in own]
        last = next(r for r in reversed(own) if r)
        learnt = " ... ".join(f"{r['opening_us_per_token']:.1f}" for r in own if r)
        loads = " / ".join(f"{r['load']:.0f}" for r in own if r and "load" in r)
        listed.append([f"`{name}`", *times, f"{last['drafted']:.0f}", f"{learnt} us", loads])
    return _table(
        "Drafting alone, without a model (width 5,120, vocabulary 151,936, one thread): milliseconds of CPU time per"
        f" round, median / mean over rounds, each timed as the fastest of at least {repeats} run{'s' * (repeats > 1)}. Load: the"
        " processes that wanted one of the two cores at the time.",
        ["", *(f"{n:,} tokens" for n in lengths), "nodes", "reading a prompt token", "load"],
        listed,
    )


def _pair(pair: Mapping[str, Any]) -> list[str]:
    listed = []
    for name, rows in pair.items():
        taus = [rows.get(key, {}).get("accept_length") for key in ("T=0", "T=1")]
        reuse = rows.get("T=1", {}).get("reuse") or {}
        shares = [" / ".join(f"{v:.2f}" for v in (reuse.get(k) or {}).values()) for k in PARTS]
        listed.append([f"`{name}`", *(f"{tau:.2f}" if tau else "" for tau in taus), *shares])
    return _table(
        "tau (tokens gained per verification) on the embedded pair's ordinary problems, how the drafter found the"
        " place to copy from, and where the accepted path ended:",
        ["", "T = 0", "T = 1", "found lexically / by meaning / not, T = 1",
         "main / branch / successor / mismatch, T = 1"],
        listed,
    )  # fmt: skip


def _sparse(sparse: Mapping[str, Any]) -> list[str]:
    listed = [
        [f"{count:,}", *(_times(row[k]) for k in ("query", "draft")),
         f"{row['sorting_s']:.0f} s", f"{row['opening_ms']:.1f} ms"]
        for count, row in _counted(sparse)
    ]  # fmt: skip
    return _table(
        "A query to a sparse datastore of synthetic text, milliseconds of CPU time (median / 90th percentile):",
        ["tokens", "longest match", "match and its tree", "time to sort", "time to open"],
        listed,
    )


def _dense(stores: Mapping[str, Any]) -> list[str]:
    listed = [
        [f"`{name}`", f"{count:,}", _times(row["query"]), f"{row['recall_at_10']:.3f}", f"{row['bytes']:.0f}",
         f"{row['building_s']:.0f} s", _if_measured(row, "hashing_s", ".2f", " s"), f"{row['loading_s']:.3f} s",
         _if_measured(row, "first_ms", ".1f", " ms")]
        for name in ("scann", "faiss")
        for count, row in _counted(stores.get(name, {}))
    ]  # fmt: skip
    if not listed:
        return []
    return _table(
        "A query for 10 neighbours to a dense datastore of synthetic clustered keys with 64 dimensions, milliseconds of"
        " CPU time (median / 90th percentile):",
        ["index", "entries", "milliseconds", "recall@10", "bytes per entry", "time to build", "time to hash",
         "time to open", "first query"],
        listed,
    )  # fmt: skip


def _times(row: Mapping[str, float]) -> str:
    return f"{row['cpu_ms']:.3f} / {row['cpu_ms_p90']:.3f}"


def _if_measured(row: Mapping[str, Any], name: str, form: str, unit: str) -> str:
    return format(row[name], form) + unit if name in row else ""
