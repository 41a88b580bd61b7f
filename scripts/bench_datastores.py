"""Measure the cost of a datastore query, and the quality of approximate neighbours.

    python scripts/bench_datastores.py [--tokens 1000000,...] [--entries 125000,...] [--questions 300]

Sparse: a synthetic text (Zipf's law, half of it copied from earlier), queried for the longest match of up to 16
tokens with suffixes of it, half of them with an error. Dense: synthetic clustered keys of 64 dimensions, queried with
other points of the same clusters. Files are mapped and warm; one thread. Figures go to results/drafters.json as they
come, and tables to docs/measurements/drafters.md.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_kit import DIMS, SPREAD, VOCABULARY, Clock, Figures, options, timed
from numpy.typing import NDArray

from semspec.datastores import indices
from semspec.datastores.files import open_arrays, write_arrays
from semspec.datastores.sparse import SparseStore
from semspec.datastores.suffixes import sorted_suffixes
from semspec.datastores.trie import heaviest
from semspec.storage.manifests import sha256

NEAREST, CLUSTER = 10, 50  # keys in a cluster


def text(count: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    made = (VOCABULARY ** rng.random(count)).astype(np.int64) - 1
    at = 1000
    while at + 60 < count:
        length = int(rng.integers(5, 50))
        start = int(rng.integers(0, at - length))
        made[at : at + length] = made[start : start + length]
        at += 2 * length
    return made


def on_tokens(count: int, questions: int) -> dict[str, Any]:
    rng, tokens = random.Random(0), text(count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.safetensors"
        with Clock() as sorting:
            backwards = tokens[::-1].astype(np.int32).view(np.uint32)
            order = sorted_suffixes(backwards, 64)
        kept = backwards.astype(">u4").view(np.uint8).reshape(-1, 4)
        write_arrays(path, {"tokens": kept, "suffixes": order})
        del order, backwards, kept
        with Clock() as opening:
            store = SparseStore.open([path], 64)
        asked = []
        for number in range(questions):
            end = rng.randrange(100, count)
            own = tokens[end - 16 : end].tolist()
            if number % 2:
                own[rng.randrange(16)] = rng.randrange(VOCABULARY)
            asked.append(own)
        matches = [store.longest(own, 16, 2) for own in asked]
        found = [m for m in matches if m]

        def tree(own: list[int]) -> None:
            matches = store.longest(own, 16, 2)
            if matches:
                heaviest(store.following(matches, 10, 256), 64)

        return {
            "query": timed(lambda own: store.longest(own, 16, 2), asked),
            "draft": timed(tree, asked),
            "found": len(found) / questions,
            "length": sum(m[0].length for m in found) / max(1, len(found)),
            "sorting_s": sorting.cpu,
            "opening_ms": 1e3 * opening.wall,
        }


def clustered(count: int) -> tuple[NDArray[np.float16], Callable[[int], NDArray[np.float32]]]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((count // CLUSTER, DIMS), dtype=np.float32)

    def points(number: int) -> NDArray[np.float32]:
        own = centres[rng.integers(0, len(centres), number)]
        own = own + SPREAD * rng.standard_normal((number, DIMS), dtype=np.float32)
        unit: NDArray[np.float32] = own / np.linalg.norm(own, axis=1, keepdims=True)
        return unit

    keys = np.concatenate([points(min(1 << 18, count - a)).astype(np.float16) for a in range(0, count, 1 << 18)])  # fmt: skip
    return keys, points


def on_entries(name: str, count: int, questions: int) -> dict[str, Any]:
    keys, points = clustered(count)
    asked = points(questions)
    true, _ = indices.Exact([keys]).search(asked, NEAREST)
    with Clock() as building:
        files = indices.build(name, [keys])
    sizes = {part: len(data) for part, data in files.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.safetensors"
        write_arrays(path, files)
        del files
        with Clock() as hashing:
            sha256(path)
        with Clock() as loading:
            mapped = open_arrays(path, {part: ("U8", (size,)) for part, size in sizes.items()})
            index = indices.load(name, {part: mapped.array(part) for part in sizes}, [keys], path)
        with Clock() as first:
            index.search(asked[:1], NEAREST)
        found = [index.search(row[None], NEAREST)[0][0] for row in asked]
        shared = [len(set(f.tolist()) & set(t.tolist())) for f, t in zip(found, true, strict=True)]
        return {
            "query": timed(lambda row: index.search(row[None], NEAREST), list(asked)),
            "recall_at_10": sum(shared) / NEAREST / questions,
            "building_s": building.cpu,
            "hashing_s": hashing.wall,
            "loading_s": loading.wall,
            "first_ms": 1e3 * first.wall,
            "bytes": sum(sizes.values()) / count,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    counts = {"tokens": "1000000,4000000,16000000,50000000", "entries": "125000,500000,2000000"}
    known = options(__doc__, **counts, indices="scann,faiss", questions=300)
    given = known.parse_args(arguments)
    figures = Figures(given.out, "datastores")
    todo = [("sparse", n) for n in given.tokens.split(",") if n]
    todo += [(name, n) for name in given.indices.split(",") for n in given.entries.split(",") if n]
    for name, number in todo:
        count, sparse = int(number), name == "sparse"
        one = (on_tokens if sparse else partial(on_entries, name))(count, given.questions)
        figures.keep(name, str(count), one | {"load": os.getloadavg()[0]})
    figures.write_tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
