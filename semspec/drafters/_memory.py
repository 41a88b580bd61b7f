"""Remember the target's passes: a hidden state and the likeliest next tokens for each position.

``see`` takes rows from passes that happen anyway. ``catch_up`` asks for rows that were part of none,
mainly the prompt's, in the pass that the prompt needs in any case. Buffers double when they are full:
a token costs O(1) amortised, however long the context is.

States are used for cosines only. They are kept at unit length and, where they are wider than ``width``,
as a *sketch*: coordinates with random signs are added up in ``width`` buckets (Charikar et al. 2002;
Weinberger et al. 2009). The inner product of two sketches has the true inner product as its mean, and a
standard deviation of about (1 - cos^2) / sqrt(width). Ranking a few hundred candidates of a model of
width 5,120 then reads kilobytes, not megabytes that fit in no cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semspec.deferred import torch
from semspec.drafters._base import DraftSessionBase, rows_of
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.types import Context, Read, Seen, What

Floats = NDArray[np.floating[Any]]
Positions: TypeAlias = "array[int]"  # of type "q": fast to slice, and numpy reads it as it is
FIRST_ROWS = 1024
PRECISIONS = {"float32": np.float32, "float16": np.float16}
CHUNK = 1024  # rows that are sketched at a time
NO_LENGTH = np.float32(1e-30)  # below the root of the smallest square that is not zero


class Sketch:
    """Turns rows into directions that are cheap to compare."""

    def __init__(self, width: int) -> None:
        self.width = width  # 0: keep rows whole
        self._signs: NDArray[np.float32] = np.zeros(0, np.float32)
        self._by_bucket: NDArray[np.float32] = self._signs

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.width and rows.shape[1] > self.width:
            parts = [self._fold(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
            rows = parts[0] if len(parts) == 1 else np.concatenate([rows[:0, : self.width], *parts])
        lengths: NDArray[np.float32] = np.einsum("ij,ij->i", rows, rows)
        np.sqrt(lengths, out=lengths)
        np.maximum(lengths, NO_LENGTH, out=lengths)  # a row of zeros stays a row of zeros
        return np.divide(rows, lengths[:, None], dtype=np.float32)

    def _fold(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        count, width = rows.shape
        whole = width - width % self.width
        if len(self._signs) != width:
            coins = np.random.default_rng(0).random(width)
            self._signs = np.where(coins < 0.5, -1, 1).astype(np.float32)
            self._by_bucket = self._signs[:whole].reshape(-1, self.width)
        buckets = rows[:, :whole].reshape(count, -1, self.width)
        folded: NDArray[np.float32] = np.einsum("nkw,kw->nw", buckets, self._by_bucket)
        if whole < width:
            folded[:, : width - whole] += rows[:, whole:] * self._signs[whole:]
        return folded


class Closest(NamedTuple):
    place: int
    likeness: float  # cosine

    @property
    def grade(self) -> int:
        """Return the likeness as a grade of ``Draft``, 0 to 9."""
        return min(9, max(0, int(10 * self.likeness)))


class Memory:
    """Rows of one context, by position."""

    def __init__(
        self, layer: int | None = None, top_k: int = 0, width: int = 0, precision: str = "float32"
    ) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision={precision}: give {' or '.join(PRECISIONS)}")
        self.hidden = Read(What.HIDDEN, layers=(layer,)) if layer is not None else None
        self.top = Read(What.TOP_K, k=top_k) if top_k else None
        self.reads = tuple(read for read in (self.hidden, self.top) if read)
        self.known = 0  # how many positions, from the first on, have their rows here
        self.states: Floats = np.zeros((0, 0), PRECISIONS[precision])  # unit length
        self.tops: NDArray[np.int32] = np.zeros((0, 0), np.int32)  # the likeliest first
        self._sketch = Sketch(width)

    def catch_up(self, context: Context, kit: Kit) -> Plan[None]:
        """Ask for the missing rows of all tokens but the last.

        The last token's row is left to the next pass, which gives it anyway: what is known then
        depends on the text alone, not on how the rows came.
        """
        if not self.reads or self.known >= len(context) - 1:
            return
        self.see((yield from rows_of(context, kit, self.reads, self.known, -1)))

    def see(self, seen: Seen) -> None:
        """Store rows that continue the known ones; rows after a gap are dropped (see ``catch_up``)."""
        start, end = seen.start, seen.start + seen.count  # ``values`` may have more rows
        if start > self.known or end <= self.known:
            return
        if self.hidden is not None:
            new = self._sketch(_array(seen.values[self.hidden])[: seen.count, 0])
            self.states = with_room(self.states, end, new.shape[1])
            self.states[start:end] = new
        if self.top is not None:
            ids = _array(seen.values[self.top][0])[: seen.count]
            self.tops = with_room(self.tops, end, ids.shape[1])
            self.tops[start:end] = ids
        self.known = end

    def closest(self, position: int, groups: Sequence[Positions]) -> list[Closest]:
        """Return of each group the place whose preceding state is most like that of ``position``.

        PLD+, and AdaPLD's equations 6, 7, 13 and 14. Ties go to the last place of the group.
        """
        places = groups[0]
        if len(groups) > 1:
            places = array("q")
            for group in groups:
                places += group
        rows = self.states.take(np.frombuffer(places, np.int64) - 1, 0)
        state = self.states[position]
        if rows.dtype != np.float32:
            rows, state = rows.astype(np.float32), state.astype(np.float32)
        # a round compares a few dozen places in few groups: lists are faster than one numpy call each
        alike = (rows @ state).tolist()
        best, start = [], 0
        for group in groups:
            end = start + len(group)
            own = alike[end - 1 : start - 1 : -1] if start else alike[end - 1 :: -1]
            likeness = max(own)
            best.append(Closest(group[-1 - own.index(likeness)], likeness))
            start = end
        return best


class RememberingSession(DraftSessionBase):
    """A session that watches the reads that its memory stores."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.watches = memory.reads

    def see(self, seen: Seen) -> None:
        self.memory.see(seen)


def _array(values: torch.Tensor) -> NDArray[Any]:
    return values.numpy(force=True)


def with_room(rows: NDArray[Any], length: int, width: int) -> NDArray[Any]:
    """Return the buffer, or a larger copy with doubled capacity if it has no room for ``length`` rows."""
    if length <= len(rows):
        return rows
    capacity = max(FIRST_ROWS, len(rows))
    while capacity < length:
        capacity *= 2
    grown = np.zeros((capacity, width), rows.dtype)
    if len(rows):
        grown[: len(rows)] = rows
    return grown
