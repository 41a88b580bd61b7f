"""A dense datastore: places of a corpus where the target's state was similar, and their continuations.

DReSD (Gritta et al. 2025, section 3): the key of a place is the target's last hidden state, standardised
(equation 1), reduced to its first principal components and scaled to unit length (equation 2). Neighbours
are the keys with the highest cosine (equation 3). The value of a place is the text after it in the shard's
one row of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semspec.datastores.files import Mapped, Shapes, open_arrays, write_arrays
from semspec.datastores.indices import (
    PROMISED,
    REORDERED,
    Again,
    Effort,
    Exact,
    Index,
    default_searched,
)
from semspec.datastores.sparse import END, check_tokens
from semspec.errors import UserError

Floats = NDArray[np.float32]
EPSILON = 1e-6  # added to variances, which may be 0; also the least length of a key
AT_ONCE = 2**24  # tokens scanned per step
BEST = 10  # neighbours per place in the measurement of an index
MOST_REORDERED = 3200  # most candidates compared again
SAME = 1e-6  # cosines that differ by at most this are equal up to rounding
GAIN = 1e-3  # least gain of recall that justifies twice the work
ROWS_BY_WIDTH = 4  # rows per step of the incremental PCA, times the states' width


@dataclass(frozen=True)
class Projection:
    """The map from the target's states to keys."""

    mean: Floats  # [width]
    deviation: Floats  # [width]
    centre: Floats  # [width] of the standardised states
    components: Floats  # [dims, width]

    @cached_property
    def _folded(self) -> tuple[Floats, Floats]:
        """Return W ((h - mean) / deviation - centre) as a weight and an offset."""
        weight = self.components.astype(np.float64) / self.deviation
        offset = weight @ self.mean + self.components.astype(np.float64) @ self.centre
        return weight.T.astype(np.float32), offset.astype(np.float32)

    def __call__(self, states: Floats) -> Floats:
        """Project states [n, width] to keys [n, dims] of unit length."""
        weight, offset = self._folded
        keys = states @ weight - offset
        lengths = np.linalg.norm(keys, axis=1, keepdims=True)
        unit: Floats = keys / np.maximum(lengths, EPSILON)
        return unit


def fit(batches: Callable[[], Iterator[Floats]], dims: int) -> tuple[Projection, float]:
    """Fit the projection to all rows; return it and the share of variance that it explains.

    Rows are read twice and never all held in memory. Raise ValueError if there are fewer rows than dimensions.
    """
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
    centre, components = (part.astype(np.float32) for part in (pca.mean_, pca.components_))
    variance = float(pca.explained_variance_ratio_.sum())
    return Projection(mean, deviation, centre, components), variance


def _steps(batches: Iterator[Floats], size: int, least: int) -> Iterator[Floats]:
    """Regroup rows into steps of ``size``; the last one has at least ``least``."""
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
    """Write a shard; ``places``: for each key, the index in ``tokens`` of the token whose state it is."""
    kept = keys.astype(np.float16)
    write_arrays(path, {"keys": kept, "places": places, "tokens": np.asarray(tokens, np.int32)})


class Neighbour(NamedTuple):
    cosine: float
    following: list[int]  # the tokens after its place, to the end of its document


class DenseShard:
    """One shard, mapped from its file."""

    def __init__(self, mapped: Mapped) -> None:
        self.keys: NDArray[np.float16] = mapped.array("keys")
        self.places: NDArray[np.int32] = mapped.array("places")
        self.tokens: NDArray[np.int32] = mapped.array("tokens")
        if len(self.keys) != len(self.places):
            raise UserError(
                f"{mapped.path} has a different number of places than keys: use an intact copy"
            )

    def __len__(self) -> int:
        return len(self.keys)

    def largest(self) -> int:
        """Return the largest token, END if there is none; a token below END counts as larger than all others."""
        parts = (self.tokens[at : at + AT_ONCE] for at in range(0, len(self.tokens), AT_ONCE))
        # as an unsigned number END is the largest, and adding 1 makes it 0
        return max((int((p.view(np.uint32) + np.uint32(1)).max()) for p in parts), default=0) - 1

    def following(self, entry: int, length: int) -> list[int]:
        at = int(self.places[entry]) + 1
        tokens: list[int] = self.tokens[at : at + length].tolist() if at > 0 else []
        return tokens[: tokens.index(END)] if END in tokens else tokens


class DenseStore:
    """The shards of a datastore, the projection to keys, and an index over all keys."""

    def __init__(self, shards: Sequence[DenseShard], projection: Projection, index: Index) -> None:
        self.shards, self.projection, self.index = list(shards), projection, index
        self._starts = np.cumsum([0, *map(len, self.shards)])

    def bind(self, name: str, vocabulary: int) -> None:
        """Raise UserError for tokens outside the model's vocabulary; reads all tokens once."""
        largest = max((shard.largest() for shard in self.shards), default=END)
        check_tokens(name, largest, vocabulary)

    def nearest(self, state: Floats, count: int, length: int) -> list[Neighbour]:
        """Return the places with the states most similar to ``state`` [width], the best first."""
        entries, cosines = self.index.search(self.projection(state[None]), count)
        found = []
        for entry, cosine in zip(entries[0].tolist(), cosines[0].tolist(), strict=True):
            # an index may return fewer, or belong to other keys, and keys may hold anything
            if not 0 <= entry < self._starts[-1] or not math.isfinite(cosine):
                continue
            shard = int(np.searchsorted(self._starts, entry, "right")) - 1
            own = entry - int(self._starts[shard])
            found.append(Neighbour(cosine, self.shards[shard].following(own, length)))
        return found


def open_shards(paths: Sequence[Path], dims: int) -> list[DenseShard]:
    """Map the files; only headers are read."""
    return [DenseShard(open_arrays(path, shapes(dims))) for path in paths]


@dataclass(frozen=True)
class Places:
    """Some places of a datastore as queries, with the cosines of their true neighbours.

    A place does not count as its own neighbour, as if the query came from a text outside the datastore. Of equally
    near neighbours any counts.
    """

    keys: Floats  # [n, dims]
    entries: NDArray[np.int64]  # [n]
    best: int  # neighbours to find
    least: Floats  # [n] the cosine of the last of them
    again: Again

    @classmethod
    def drawn(cls, keys: Sequence[NDArray[np.float16]], count: int, seed: int) -> Places:
        starts = np.cumsum([0, *map(len, keys)])
        chosen = np.sort(np.random.default_rng(seed).permutation(starts[-1])[:count])
        at = np.searchsorted(starts, chosen, "right") - 1
        rows = [keys[s][e - starts[s]] for s, e in zip(at, chosen, strict=True)]
        asked, best, exact = (
            np.stack(rows).astype(np.float32),
            min(BEST, starts[-1] - 1),
            Exact(keys),
        )
        least = list[float]()
        for i in range(0, len(asked), 64):
            found = zip(chosen[i : i + 64], *exact.search(asked[i : i + 64], best + 1), strict=True)
            least += [cosines[near != own][:best].min(initial=1.0) for own, near, cosines in found]
        return cls(asked, chosen, int(best), np.array(least, np.float32), Again(keys))

    def found(self, index: Index) -> NDArray[np.int64]:
        """Return what an index finds for each place, asked one at a time as a drafter does; includes the place itself.

        -1 fills up where an index finds fewer than asked for.
        """
        found = np.full((len(self.keys), self.best + 1), -1, np.int64)
        for row, key in zip(found, self.keys, strict=True):
            entries = index.search(key[None], len(row))[0][0]
            row[: len(entries)] = entries
        return found

    def recall(self, found: NDArray[np.int64]) -> float:
        """Return the share of true neighbours that were found."""
        if not self.best:
            return 1.0
        others = np.where(found == self.entries[:, None], -1, found)
        near = self.again.cosines(others, self.keys) >= self.least[:, None] - SAME
        return float(np.minimum(near.sum(1), self.best).mean()) / self.best


def measure(places: Places, index: Index) -> dict[str, Any]:
    """Measure how well places find themselves (MRR, equation 4), and an index's recall of the others."""
    found = places.found(index)
    own = found == places.entries[:, None]
    ranks = np.where(own.any(1), own.argmax(1) + 1, np.inf)
    return {
        "mrr": float((1 / ranks).mean()),
        "recall_at_10": places.recall(found),
        "asked": len(places.keys),
    }


def tuned(places: Places, load: Callable[[Effort], Index], leaves: int) -> Effort:
    """Return an effort that reaches the recall ``PROMISED``, or beyond which more effort gains nothing.

    Each step doubles either the leaves searched or the candidates compared again, whichever finds more.
    """
    effort = Effort(default_searched(leaves), REORDERED)
    recall = places.recall(places.found(load(effort)))
    while recall < PROMISED:
        more = [
            Effort(min(leaves, 2 * effort.searched), effort.reordered),
            Effort(effort.searched, min(MOST_REORDERED, 2 * effort.reordered)),
        ]
        tried = [(places.recall(places.found(load(e))), e) for e in more if e != effort]
        better, wider = max(tried, key=lambda pair: pair[0], default=(recall, effort))
        if better < recall + GAIN:
            break
        recall, effort = better, wider
    return effort
