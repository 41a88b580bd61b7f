"""Corpora for ``bench_drafters.py``: what rest and dresd draft from where no model is there.

The sparse one is a text of its own that repeats itself. Of the dense one the key of a place, and the state that
asks for it, lie about a centre that the token has which comes next, so that neighbours go on alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.datastores import indices
from semspec.datastores.dense import DenseStore, Projection, open_shards
from semspec.datastores.dense import write_shard as write_dense
from semspec.datastores.sparse import SparseStore, write_shard
from semspec.drafters.dresd import Dresd, DresdSession
from semspec.drafters.rest import Rest, RestSession
from semspec.protocols import Kit

TOKENS, ENTRIES, DIMS, DEPTH = 1_000_000, 125_000, 64, 64
SPREAD = 0.5  # of keys about a centre, in each dimension; centres have 1
Floats = NDArray[np.float32]


def sparse(text: Sequence[int]) -> SparseStore:
    with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives its name
        path = Path(folder) / "shard-00000.safetensors"
        write_shard(path, [list(text)], DEPTH)
        return SparseStore.open([path], DEPTH)


class States:
    """A target's last states by the token that comes next, and the keys that they become."""

    def __init__(self, vocabulary: int, width: int) -> None:
        self.rng = np.random.default_rng(1)
        self.centres = self.rng.standard_normal((vocabulary, DIMS), dtype=np.float32)
        # so many random directions stand nearly at right angles: what they lift they project back
        directions = self.rng.standard_normal((DIMS, width), dtype=np.float32)
        self.components: Floats = directions / np.float32(width**0.5)

    def keys(self, following: Sequence[int]) -> Floats:
        own = self.centres[np.asarray(following)]
        noise = self.rng.standard_normal(own.shape, dtype=np.float32)
        return own + np.float32(SPREAD) * noise

    def __call__(self, following: Sequence[int]) -> Floats:
        states: Floats = self.keys(following) @ self.components
        return states


def dense(text: Sequence[int], states: States) -> DenseStore:
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


def session(name: str, store: Any, kit: Kit) -> Any:
    if name == "rest":
        return RestSession(Rest(), store, kit)
    return DresdSession(Dresd(), store, kit)
