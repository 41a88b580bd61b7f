"""Find positions of a context whose continuation may be reused: those of a token, or of similar tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semspec.drafters._memory import CHUNK, Positions, Sketch, with_room
from semspec.protocols import Kit, Plan
from semspec.types import EMBEDDINGS, Answer, Context, Query

NOWHERE: Positions = array("q")


class Anchors:
    """The positions of each token that have a token after them, and one before, whose state ranks them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # all different tokens, in the order in which they came
        self._numbers: dict[int, int] = {}  # token -> its index in ``tokens``
        self._positions: list[Positions] = []  # by that index
        self._newest = array("q")  # the last position, by that index
        self._known = 1

    def learn(self, tokens: Sequence[int]) -> None:
        """Index what was appended since the last call."""
        for position in range(self._known, len(tokens) - 1):
            token = tokens[position]
            number = self._numbers.setdefault(token, len(self.tokens))
            if number == len(self.tokens):
                self.tokens.append(token)
                self._positions.append(array("q"))
                self._newest.append(position)
            self._positions[number].append(position)
            self._newest[number] = position
        self._known = max(self._known, len(tokens) - 1)

    def at(self, token: int, newest: int) -> Positions:
        """Return at most the ``newest`` last positions of a token, in ascending order."""
        number = self._numbers.get(token)
        return NOWHERE if number is None else self._positions[number][-newest:]

    def of(self, numbers: Positions, newest: int) -> Positions:
        """Return the ``newest`` last positions of the tokens with these numbers, grouped by token.

        However many tokens there are, positions are collected for at most ``newest`` of them: a
        token is skipped if that many others have a later last position.
        """
        if len(numbers) > newest:
            which = np.frombuffer(numbers, np.int64)
            last = np.frombuffer(self._newest, np.int64)[which]
            numbers = array("q", which[_newest_of(last, newest)].tobytes())
        found = array("q")
        for number in numbers:
            found += self._positions[number][-newest:]
        if len(found) > newest:
            places = np.frombuffer(found, np.int64)
            found = array("q", places[_newest_of(places, newest)].tobytes())
        return found


def _newest_of(places: NDArray[np.int64], count: int) -> NDArray[np.bool]:
    """Return which of the places are among the newest."""
    among: NDArray[np.bool] = places >= np.partition(places, -count)[-count]
    return among


class Neighbours:
    """Finds the known tokens whose embeddings are similar to a token's.

    Each embedding is read once, and each pair of tokens is compared once.
    """

    def __init__(self, threshold: float, width: int) -> None:
        self.threshold = threshold
        self._sketch = Sketch(width)
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._table = np.zeros((0, 0), np.float32)  # row i: the i-th known token
        self.filled = 0  # known tokens in the table
        self._found: dict[int, Positions] = {}  # token -> indices of the known tokens like it
        self._compared: dict[int, int] = {}  # token -> number of known tokens it was compared with

    def like(
        self, context: Context, kit: Kit, queries: Sequence[int], known: Sequence[int]
    ) -> Plan[list[Positions]]:
        """Return for each query the indices in ``known`` of tokens whose cosine reaches the threshold.

        AdaPLD, equation 4. ``known`` may only grow; the caller must not change what is returned.
        """
        yield from self.learn(context, kit, known)
        yield from self._load(context, kit, queries)
        # queries that were compared before lack only a few tokens: one product for all of these,
        # and one with all known tokens for the new queries
        behind: dict[int, list[int]] = {}
        for token in dict.fromkeys(queries):
            count = self._compared.get(token, 0)
            if count < len(known):
                behind.setdefault(min(count, 1), []).append(token)
        for tokens in behind.values():
            self._compare(tokens, known)
        return [self._found[token] for token in queries]

    def learn(self, context: Context, kit: Kit, known: Sequence[int]) -> Plan[None]:
        """Add the new tokens of ``known`` to the table, so that later comparisons find them."""
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
        found = [self._found.setdefault(token, array("q")) for token in tokens]
        rows, columns = alike.nonzero()
        if rows.size:  # there may be thousands of hits
            rows += start
            for column, own in enumerate(found):
                new = rows[(columns == column) & (rows >= counts[column])]
                own.frombytes(new.astype(np.int64).tobytes())
        self._compared.update(dict.fromkeys(tokens, len(known)))

    def _load(self, context: Context, kit: Kit, tokens: Sequence[int]) -> Plan[None]:
        """Read the embeddings that are still unknown; the target runs no pass for it."""
        if not (missing := [token for token in dict.fromkeys(tokens) if token not in self._rows]):
            return
        own = context, kit.sampling, kit.rng
        answer: Answer = yield Query(
            "target", *own, tokens=missing, reads=(EMBEDDINGS,), purpose="draft"
        )
        rows = self._sketch(answer[EMBEDDINGS].numpy(force=True))
        self._rows.update(zip(missing, rows, strict=True))
