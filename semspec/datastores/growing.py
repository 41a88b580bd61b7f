"""A store of texts that grows while it is used: answers to earlier questions, to copy from.

SuffixDecoding (Oliaro et al. 2025) keeps what was generated before in a suffix tree. Here the place after
each run of four tokens is kept, and with each place the one before it that follows the same run: the
longest match of a text's end is the longest of these, which are looked at from the newest on.

Texts belong to a tenant, and nobody else finds them. The memory of all together is bounded: the oldest
texts make room, whosever they are.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from semspec.datastores.sparse import END

RUN = 4  # tokens that match at least
BITS = 31  # of a token
MASK = (1 << BITS * RUN) - 1
PLACES = 32  # of a run that are looked at, the newest first
BYTES = 192  # of memory that a token takes at most: its own and its place (12), a run (44), a place (32),
# and their entry in a table that is a third full at least (90); the rest is room that arrays keep
OWN_BYTES = 1000  # of a text at most, whatever its length: it may be its tenant's only one


class Texts:
    """The texts of one tenant, one after the other; places count from the first text ever."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self.before = array("q")  # of each place the one before it that follows the same run
        self.newest: dict[int, int] = {}  # by run: the last place that follows it
        self.base = 0  # texts before this place are gone

    def add(self, text: Sequence[int]) -> None:
        start = self.base + len(self.tokens)
        self.tokens.extend([*text, END])
        self.before.extend(array("q", [-1]) * (len(text) + 1))
        for place, run in _runs(text, start):
            self.before[place - self.base] = self.newest.get(run, -1)
            self.newest[run] = place

    def drop(self, count: int) -> None:
        """Forget the first ``count`` tokens: the oldest text and its end."""
        text = self.tokens[: count - 1]
        for place, run in _runs(text, self.base):
            if self.newest[run] == place:
                del self.newest[run]
        del self.tokens[:count], self.before[:count]
        self.base += count

    def find(
        self, tail: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[int, NDArray[np.int64]] | None:
        """As ``protocols.Earlier.find``."""
        if len(tail) < RUN or longest < RUN:
            return None
        run = 0
        for token in tail[-RUN:]:
            run = run << BITS | token
        place, looked, best, found = self.newest.get(run, -1), 0, max(least, RUN), list[int]()
        while place >= self.base and looked < PLACES:
            matched = self._agreeing(place - self.base, tail, longest)
            if matched > best:
                found.clear()
            if matched >= best:
                best = matched
                found.append(place - self.base)
            place, looked = self.before[place - self.base], looked + 1
        if not found:
            return None
        rows = np.full((len(found), length), END, np.int64)
        for row, at in zip(rows, found, strict=True):
            following = self.tokens[at : at + length]
            row[: len(following)] = following
        rows[np.logical_or.accumulate(rows == END, axis=1)] = END
        return best, rows

    def _agreeing(self, place: int, tail: Sequence[int], longest: int) -> int:
        """Count the tokens before a place that ``tail`` ends with."""
        count, most = RUN, min(place, len(tail), longest)
        while count < most and self.tokens[place - 1 - count] == tail[-1 - count]:
            count += 1
        return count


def _bytes(tokens: int) -> int:
    return OWN_BYTES + BYTES * tokens


def _runs(text: Sequence[int], start: int) -> list[tuple[int, int]]:
    """Pair each run of a text with the place that follows it; nothing follows the last one."""
    run, found = 0, list[tuple[int, int]]()
    for at, (token, _) in enumerate(pairwise(text), 1):
        run = (run << BITS | token) & MASK
        if at >= RUN:
            found.append((start + at, run))
    return found


class GrowingStore:
    """Texts of all tenants, of so many bytes at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._texts: dict[str, Texts] = {}
        self._order: deque[tuple[str, int]] = (
            deque()
        )  # the texts, the oldest first: whose, and tokens
        self._lock = Lock()  # a server may answer in several threads
        self.nbytes = 0  # that all texts take at most, with what finds them

    def add(self, tenant: str, text: Sequence[int]) -> None:
        """Take up a text; the oldest ones make room for it."""
        with self._lock:
            self._texts.setdefault(tenant, Texts()).add(text)
            self._order.append((tenant, len(text) + 1))
            self.nbytes += _bytes(len(text) + 1)
            while self.nbytes > self.limit:
                oldest, count = self._order.popleft()
                texts = self._texts[oldest]
                texts.drop(count)
                self.nbytes -= _bytes(count)
                if not texts.tokens:
                    del self._texts[oldest]

    def of(self, tenant: str) -> Own:
        """Return what one tenant may see."""
        return Own(self, tenant)


@dataclass(frozen=True, slots=True)
class Own:
    """The texts of one tenant in a store."""

    store: GrowingStore
    tenant: str

    def find(
        self, tail: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[int, NDArray[np.int64]] | None:
        """As ``protocols.Earlier.find``."""
        with self.store._lock:
            texts = self.store._texts.get(self.tenant)
            return texts.find(tail, longest, least, length) if texts else None
