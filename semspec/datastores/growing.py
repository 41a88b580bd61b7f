"""A store of texts that grows in use: answers to earlier questions, to copy from.

SuffixDecoding (Oliaro et al. 2025) keeps generated text in a suffix tree. This store instead keeps the place
after each run of four tokens, chained to the previous place after the same run. To find the longest match of a
text's end, it follows this chain from the newest place.

Texts belong to a tenant, and only that tenant finds them. The memory for all tenants together is bounded: the
oldest texts are dropped, whoever owns them.
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

RUN = 4  # least tokens of a match
BITS = 31  # per token
MASK = (1 << BITS * RUN) - 1
PLACES = 32  # most places checked per run, the newest first
BYTES = 192  # most memory per token: token and place (12), a run (44), a place (32), and their entry in a table
# that is at least a third full (90); the rest is spare room of arrays
OWN_BYTES = 1000  # most memory per text besides: it may be its tenant's only one


class Texts:
    """One tenant's texts in a row; places count from the first text ever added."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self.before = array("q")  # for each place, the previous place after the same run
        self.newest: dict[int, int] = {}  # by run: the last place after it
        self.base = 0  # texts before this place were dropped

    def add(self, text: Sequence[int]) -> None:
        start = self.base + len(self.tokens)
        self.tokens.extend([*text, END])
        self.before.extend(array("q", [-1]) * (len(text) + 1))
        for place, run in _runs(text, start):
            self.before[place - self.base] = self.newest.get(run, -1)
            self.newest[run] = place

    def drop(self, count: int) -> None:
        """Drop the first ``count`` tokens: the oldest text and its end mark."""
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
        """Count the tokens before a place that agree with the end of ``tail``."""
        count, most = RUN, min(place, len(tail), longest)
        while count < most and self.tokens[place - 1 - count] == tail[-1 - count]:
            count += 1
        return count


def _bytes(tokens: int) -> int:
    return OWN_BYTES + BYTES * tokens


def _runs(text: Sequence[int], start: int) -> list[tuple[int, int]]:
    """Pair each run of a text with the place after it, except the last run, which nothing follows."""
    run, found = 0, list[tuple[int, int]]()
    for at, (token, _) in enumerate(pairwise(text), 1):
        run = (run << BITS | token) & MASK
        if at >= RUN:
            found.append((start + at, run))
    return found


class GrowingStore:
    """Texts of all tenants, in at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._texts: dict[str, Texts] = {}
        # tenant and number of tokens of each text, the oldest first
        self._order: deque[tuple[str, int]] = deque()
        self._lock = Lock()  # a server may answer in several threads
        self.nbytes = 0  # upper bound for all texts and their tables

    def add(self, tenant: str, text: Sequence[int]) -> None:
        """Add a text, and drop the oldest ones if there is no room."""
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
