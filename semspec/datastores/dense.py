"""A dense datastore: places of a corpus where the target's state was alike, and what it wrote there.

DReSD (papers: Gritta et al. 2025, section 3): the key of a place is the target's last hidden state, its deviations
from the mean over their spread (equation 1), its first principal components, scaled to unit length
(equation 2). Neighbours are those of the highest cosine (equation 3). The value of a place is what follows it in
the shard's one row of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semspec.datastores.files import Mapped, Shapes, open_arrays, write_arrays
from semspec.datastores.indices import Index
from semspec.datastores.sparse import END, check_tokens
from semspec.errors import UserError

Floats = NDArray[np.float32]
EPSILON = 1e-6  # of a variance: a dimension that never changes says nothing
AT_ONCE = 2**24  # tokens that are looked at in one step
ROWS_BY_WIDTH = 4  # rows in a step of the incremental decomposition, times the states' width


@dataclass(frozen=True)
class Projection:
    """From the target's states to keys."""

    mean: Floats  # [width]
    deviation: Floats  # [width]
    centre: Floats  # [width] of the standardised states
    components: Floats  # [dims, width]

    def __post_init__(self) -> None:
        # W ((h - mean) / deviation - centre), as one product and one difference
        folded = self.components.astype(np.float64) / self.deviation
        object.__setattr__(self, "_weight", folded.T.astype(np.float32))
        told = folded @ self.mean + self.components.astype(np.float64) @ self.centre
        object.__setattr__(self, "_offset", told.astype(np.float32))

    @property
    def dims(self) -> int:
        return len(self.components)

    def __call__(self, states: Floats) -> Floats:
        """[n, width] -> [n, dims] of unit length."""
        keys = states @ self._weight - self._offset  # type: ignore[attr-defined]
        lengths = np.linalg.norm(keys, axis=1, keepdims=True)
        unit: Floats = keys / np.maximum(lengths, EPSILON)
        return unit


def fit(batches: Callable[[], Iterator[Floats]], dims: int) -> tuple[Projection, float]:
    """The projection of all rows, read twice and never held together; the share of variance it keeps."""
    from sklearn.decomposition import IncrementalPCA
    from sklearn.preprocessing import StandardScaler

    scaler, count = StandardScaler(), 0
    for rows in batches():
        scaler.partial_fit(rows.astype(np.float64))
        count += len(rows)
    if count < dims:
        raise ValueError(f"{count} states are too few for {dims} dimensions")
    mean = scaler.mean_.astype(np.float32)
    deviation = np.sqrt(scaler.var_ + EPSILON).astype(np.float32)
    pca = IncrementalPCA(n_components=dims)
    for rows in _steps(batches(), max(ROWS_BY_WIDTH * len(mean), dims), dims):
        pca.partial_fit((rows - mean) / deviation)
    made = Projection(mean, deviation, pca.mean_.astype(np.float32), pca.components_.astype(np.float32))  # fmt: skip
    return made, float(pca.explained_variance_ratio_.sum())


def _steps(batches: Iterator[Floats], size: int, least: int) -> Iterator[Floats]:
    """The same rows, ``size`` at a time; the last step has at least ``least``."""
    held: list[Floats] = []
    for rows in batches:
        held.append(rows)
        if sum(map(len, held)) >= size + least:
            joined = np.concatenate(held)
            yield joined[:size]
            held = [joined[size:]]
    if held:
        yield np.concatenate(held)


def shapes(dims: int) -> Shapes:
    return {"keys": ("F16", (-1, dims)), "places": ("I32", (-1,)), "tokens": ("I32", (-1,))}


def write_shard(path: Path, keys: Floats, places: NDArray[np.int32], tokens: Sequence[int]) -> None:
    """``places`` are where in ``tokens`` the token stands whose state each key is."""
    kept = keys.astype(np.float16)
    write_arrays(path, {"keys": kept, "places": places, "tokens": np.asarray(tokens, np.int32)})


class Neighbour(NamedTuple):
    cosine: float
    following: list[int]  # the tokens behind its place, to the end of its document


class DenseShard:
    """A mapped file."""

    def __init__(self, mapped: Mapped) -> None:
        self.keys: NDArray[np.float16] = mapped.array("keys")
        self.places: NDArray[np.int32] = mapped.array("places")
        self.tokens: NDArray[np.int32] = mapped.array("tokens")
        if len(self.keys) != len(self.places):
            raise UserError(f"{mapped.path} has not as many places as keys: take an intact copy")

    def __len__(self) -> int:
        return len(self.keys)

    def largest(self) -> int:
        """The largest token, END if there is none; one below END counts as larger than any."""
        parts = (self.tokens[at : at + AT_ONCE] for at in range(0, len(self.tokens), AT_ONCE))
        # unsigned, END is the largest number of all, and 1 more is 0
        return max((int((p.view(np.uint32) + np.uint32(1)).max()) for p in parts), default=0) - 1

    def following(self, entry: int, length: int) -> list[int]:
        at = int(self.places[entry]) + 1
        tokens: list[int] = self.tokens[at : at + length].tolist() if at > 0 else []
        return tokens[: tokens.index(END)] if END in tokens else tokens


class DenseStore:
    """The shards of a datastore, the way to their keys, and an index over them."""

    def __init__(self, shards: Sequence[DenseShard], projection: Projection, index: Index) -> None:
        self.shards, self.projection, self.index = list(shards), projection, index
        self._starts = np.cumsum([0, *map(len, self.shards)])

    def bind(self, name: str, vocabulary: int) -> None:
        """Refuse tokens that a model of this vocabulary does not have; reads all of them once."""
        largest = max((shard.largest() for shard in self.shards), default=END)
        check_tokens(name, largest, vocabulary)

    def nearest(self, state: Floats, count: int, length: int) -> list[Neighbour]:
        """The places whose states are most like this one [width], the most alike first."""
        entries, cosines = self.index.search(self.projection(state[None]), count)
        found = []
        for entry, cosine in zip(entries[0].tolist(), cosines[0].tolist(), strict=True):
            # an index may have fewer, or be of other keys; keys may be anything
            if not 0 <= entry < self._starts[-1] or not math.isfinite(cosine):
                continue
            shard = int(np.searchsorted(self._starts, entry, "right")) - 1
            own = entry - int(self._starts[shard])
            found.append(Neighbour(cosine, self.shards[shard].following(own, length)))
        return found


def open_shards(paths: Sequence[Path], dims: int) -> list[DenseShard]:
    """Maps the files; nothing is read but headers."""
    return [DenseShard(open_arrays(path, shapes(dims))) for path in paths]


def measure(
    keys: Sequence[NDArray[np.float16]], index: Index, exact: Index, count: int, seed: int
) -> dict[str, Any]:
    """How well places find themselves (MRR, the paper's equation 4), and the index the true neighbours."""
    starts = np.cumsum([0, *map(len, keys)])
    chosen = np.sort(np.random.default_rng(seed).permutation(starts[-1])[:count])
    at = np.searchsorted(starts, chosen, "right") - 1
    asked = np.stack(
        [keys[s][e - starts[s]].astype(np.float32) for s, e in zip(at, chosen, strict=True)]
    )
    best = min(10, int(starts[-1]))
    found = np.concatenate([index.search(row[None], best)[0] for row in asked])
    true = np.concatenate([exact.search(asked[i : i + 64], best)[0] for i in range(0, len(asked), 64)])  # fmt: skip
    own = found == chosen[:, None]
    ranks = np.where(own.any(1), own.argmax(1) + 1, np.inf)
    shared = [len(set(f) & set(t)) for f, t in zip(found.tolist(), true.tolist(), strict=True)]
    return {
        "mrr": float((1 / ranks).mean()),
        "recall_at_10": float(np.mean(shared)) / best,
        "asked": len(asked),
    }
