"""Positions of a context whose continuation may be reused: by token, and by tokens like it."""

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
    """Where each token stands with a token after it, and one before it whose state ranks it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # all different tokens, in the order in which they came
        self._numbers: dict[int, int] = {}  # of a token: where it is in ``tokens``
        self._positions: list[Positions] = []  # by number
        self._newest = array("q")  # the last of each of these
        self._known = 1

    def learn(self, tokens: Sequence[int]) -> None:
        """Reads what was appended since the last call."""
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
        """The ``newest`` positions of a token at most, in ascending order."""
        number = self._numbers.get(token)
        return NOWHERE if number is None else self._positions[number][-newest:]

    def of(self, numbers: Positions, newest: int) -> Positions:
        """Positions of the tokens with these numbers, one token after the other: the ``newest`` in all.

        Whatever their count: a token whose own newest place is older than those of as many others
        has none among them, so that it is not looked at.
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
    """Tell which of the places are among the newest."""
    among: NDArray[np.bool] = places >= np.partition(places, -count)[-count]
    return among


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
        self._found: dict[int, Positions] = {}  # what in the memory is like a token, by number
        self._compared: dict[int, int] = {}  # tokens of the memory that it was compared with

    def like(
        self, context: Context, kit: Kit, queries: Sequence[int], known: Sequence[int]
    ) -> Plan[list[Positions]]:
        """For each query, where in ``known`` tokens are whose cosine with it reaches the threshold.

        AdaPLD, equation 4. ``known`` may only grow, and what is handed out is only to be read.
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
        found = [self._found.setdefault(token, array("q")) for token in tokens]
        rows, columns = alike.nonzero()
        if rows.size:  # there may be thousands
            rows += start
            for column, own in enumerate(found):
                new = rows[(columns == column) & (rows >= counts[column])]
                own.frombytes(new.astype(np.int64).tobytes())
        self._compared.update(dict.fromkeys(tokens, len(known)))

    def _load(self, context: Context, kit: Kit, tokens: Sequence[int]) -> Plan[None]:
        """Reads the embeddings that are still unknown; the target runs no pass for it."""
        if not (missing := [token for token in dict.fromkeys(tokens) if token not in self._rows]):
            return
        own = context, kit.sampling, kit.rng
        answer: Answer = yield Query(
            "target", *own, tokens=missing, reads=(EMBEDDINGS,), purpose="draft"
        )
        rows = self._sketch(answer[EMBEDDINGS].numpy(force=True))
        self._rows.update(zip(missing, rows, strict=True))
