"""Positions of a context whose continuation may be reused: by token, and by tokens like it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.drafters._memory import CHUNK, Positions, Sketch, with_room
from semspec.protocols import Kit, Plan
from semspec.types import Answer, Context, Query, Read, What

NOWHERE: Positions = array("q")
EMBEDDINGS = Read(What.EMBEDDINGS)


class Anchors:
    """Where each token stands with a token after it, and one before it whose state ranks it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # all different tokens, in the order in which they came
        self._positions: dict[int, Positions] = {}
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

    def at(self, token: int, newest: int) -> Positions:
        """The ``newest`` positions of a token at most, in ascending order."""
        own = self._positions.get(token)
        return NOWHERE if own is None else own[-newest:]

    def of(self, tokens: Iterable[int], newest: int) -> Positions:
        """Positions of these tokens one after the other, ``newest`` of each at most."""
        found = array("q")
        for token in tokens:
            found += self.at(token, newest)
        return found


class Neighbours:
    """Tokens of the memory whose embeddings are like those of others.

    Embeddings are read once a token; a token is compared once with each other one.
    """

    def __init__(self, threshold: float, width: int) -> None:
        self.threshold = threshold
        self._sketch = Sketch(width)
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._table = np.zeros((0, 0), np.float32)  # row i: the i-th token of the memory
        self.filled = 0  # tokens of the memory that are in it
        self._found: dict[int, list[int]] = {}  # the tokens of the memory that are like a token
        self._compared: dict[int, int] = {}  # tokens of the memory that it was compared with

    def like(
        self, context: Context, kit: Kit, queries: Sequence[int], known: Sequence[int]
    ) -> Plan[list[list[int]]]:
        """For each query, the tokens of ``known`` whose cosine with it reaches the threshold.

        AdaPLD, equation 4. ``known`` may only grow.
        """
        yield from self.learn(context, kit, known)
        yield from self._load(context, kit, queries)
        # those that were compared before lack a few tokens each: one product for all of these, and
        # one with the whole memory for the new ones alone
        behind: dict[int, list[int]] = {}
        for token in dict.fromkeys(queries):
            count = self._compared.get(token, 0)
            if count < len(known):
                behind.setdefault(min(count, 1), []).append(token)
        for tokens in behind.values():
            self._compare(tokens, known)
        return [self._found[token] for token in queries]

    def learn(self, context: Context, kit: Kit, known: Sequence[int]) -> Plan[None]:
        """Takes up what ``known`` has gained, so that later comparisons find it there."""
        if self.filled == len(known):
            return
        for start in range(self.filled, len(known), CHUNK):
            new = known[start : start + CHUNK]
            yield from self._load(context, kit, new)
            self._table = with_room(self._table, start + len(new), self._rows[new[0]].size)
            for token in new:
                self._table[self.filled] = self._rows[token]
                self.filled += 1

    def _compare(self, tokens: Sequence[int], known: Sequence[int]) -> None:
        counts = [self._compared.get(token, 0) for token in tokens]
        start = min(counts)
        asked = np.array([self._rows[token] for token in tokens]).T
        alike: NDArray[Any] = self._table[start : len(known)] @ asked >= self.threshold
        found = [self._found.setdefault(token, []) for token in tokens]
        where, which = (part.tolist() for part in alike.nonzero())
        for row, column in zip(where, which, strict=True):
            if start + row >= counts[column]:
                found[column].append(known[start + row])
        self._compared.update(dict.fromkeys(tokens, len(known)))

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
