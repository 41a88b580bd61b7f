"""Positions of a context whose continuation may be reused: by token, and by tokens like it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.drafters._memory import Sketch, with_room
from semspec.protocols import Kit, Plan
from semspec.types import Answer, Context, Query, Read, What

Positions = NDArray[np.intp]
NOWHERE: Positions = np.zeros(0, np.intp)
EMBEDDINGS = Read(What.EMBEDDINGS)


class Anchors:
    """Where each token stands with a token after it, and one before it whose state ranks it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # all different tokens, in the order in which they came
        self._positions: dict[int, array[int]] = {}
        self._known = 1

    def learn(self, tokens: Sequence[int]) -> None:
        """Reads what was appended since the last call."""
        for position in range(self._known, len(tokens) - 1):
            token = tokens[position]
            own = self._positions.get(token)
            if own is None:
                own = self._positions[token] = array("q")
                self.tokens.append(token)
            own.append(position)
        self._known = max(self._known, len(tokens) - 1)

    def of(self, tokens: Iterable[int], newest: int) -> Positions:
        """Positions of these tokens, ``newest`` of each at most."""
        found = [self._positions[token][-newest:] for token in tokens if token in self._positions]
        if not found:
            return NOWHERE
        parts = [np.frombuffer(own, np.int64) for own in found]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Neighbours:
    """Tokens of the memory whose embeddings are like those of others.

    Embeddings are read once a token; of what was compared only new tokens are compared again.
    """

    def __init__(self, threshold: float, width: int) -> None:
        self.threshold = threshold
        self._sketch = Sketch(width)
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._table = np.zeros((0, 0), np.float32)  # row i: the i-th token of the memory
        self._filled = 0
        self._found: dict[int, tuple[int, list[int]]] = {}  # tokens compared with, and those alike

    def like(
        self, context: Context, kit: Kit, queries: Sequence[int], known: Sequence[int]
    ) -> Plan[list[list[int]]]:
        """For each query, the tokens of ``known`` whose cosine with it reaches the threshold.

        AdaPLD, equation 4. ``known`` may only grow.
        """
        yield from self._load(context, kit, [*known[self._filled :], *queries])
        self._fill(known)
        done = [self._found.get(token, (0, [])) for token in queries]
        start = min((count for count, _ in done), default=len(known))
        if start < len(known):
            asked = np.stack([self._rows[token] for token in queries])
            alike: NDArray[Any] = self._table[start : len(known)] @ asked.T >= self.threshold
            where, which = (part.tolist() for part in np.nonzero(alike))
            for row, column in zip(where, which, strict=True):
                count, found = done[column]
                if start + row >= count:
                    found.append(known[start + row])
        for token, (_, found) in zip(queries, done, strict=True):
            self._found[token] = (len(known), found)
        return [found for _, found in done]

    def _load(self, context: Context, kit: Kit, tokens: Sequence[int]) -> Plan[None]:
        """Reads the embeddings that are still unknown; the target runs no pass for it."""
        missing = [token for token in dict.fromkeys(tokens) if token not in self._rows]
        if not missing:
            return
        answer: Answer = yield Query(
            "target",
            context,
            kit.sampling,
            kit.rng,
            tokens=missing,
            reads=(EMBEDDINGS,),
            purpose="draft",
        )
        rows = self._sketch(answer[EMBEDDINGS].numpy(force=True))
        self._rows.update(zip(missing, rows, strict=True))

    def _fill(self, known: Sequence[int]) -> None:
        new = known[self._filled :]
        if not new:
            return
        rows = np.stack([self._rows[token] for token in new])
        self._table = with_room(self._table, len(known), rows.shape[1])
        self._table[self._filled : len(known)] = rows
        self._filled = len(known)
