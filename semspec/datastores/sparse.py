"""A sparse datastore: the places in a corpus where a text's last tokens occur, and what follows there.

The text of a shard is stored backwards, so the longest suffix of a context is the longest prefix of the
search key, and one binary search finds it. Tokens are four bytes, the most significant first, so bytes sort
like tokens, and the search compares bytes of the mapped file.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semspec.datastores.files import Mapped, Shapes, open_arrays, write_arrays
from semspec.datastores.suffixes import sorted_suffixes
from semspec.errors import UserError

END = -1  # marks the end of a document in place of a token
SHAPES: Shapes = {"tokens": ("U8", (-1, 4)), "suffixes": ("I32", (-1,))}
Tokens = NDArray[np.int64]


def backwards(documents: Iterable[Sequence[int]]) -> NDArray[np.uint32]:
    """Return a shard's text: the documents, each preceded by END, joined and reversed."""
    parts = [np.asarray([END, *document], np.int64) for document in documents]
    text = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if len(text) and (text.min() < END or text.max() >= 2**31):
        raise ValueError("a token is not from 0 to 2^31 - 1")
    return text[::-1].astype(np.int32).view(np.uint32)


def write_shard(path: Path, documents: Iterable[Sequence[int]], depth: int) -> int:
    """Sort the documents' tokens, write the shard and return its number of places."""
    text = backwards(documents)
    order = sorted_suffixes(text, depth)
    tokens = text.astype(">u4").view(np.uint8).reshape(-1, 4)
    write_arrays(path, {"tokens": tokens, "suffixes": order})
    return len(text)


@dataclass(frozen=True, slots=True)
class Match:
    """The places of one shard that follow the context's last ``length`` tokens."""

    length: int
    shard: Shard
    first: int  # index among the sorted suffixes
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first


class Shard:
    """One shard, mapped from its file."""

    def __init__(self, mapped: Mapped) -> None:
        self._map: mmap.mmap = mapped.map
        self._start = mapped.start("tokens")
        self._tokens = mapped.array("tokens").reshape(-1).view(">u4")
        self._order = mapped.array("suffixes")
        if len(self._tokens) != len(self._order):
            what = "has not as many suffixes as tokens"
            raise UserError(f"{mapped.path} {what}: use an intact copy")
        self._places = self._order.data  # indexing a memoryview is cheaper than a numpy array

    def __len__(self) -> int:
        return len(self._order)

    def _key(self, rank: int, size: int) -> bytes:
        at = self._start + 4 * self._places[rank]
        return self._map[at : at + size]

    def longest(self, wanted: bytes, least: int) -> Match | None:
        """Find the longest prefix of ``wanted``, of at least ``least`` tokens, and all its places."""
        size, text, places, start = len(wanted), self._map, self._places, self._start

        def key(rank: int) -> bytes:
            at = start + 4 * places[rank]
            return text[at : at + size]

        low = bisect_left(range(len(places)), wanted, key=key)
        # the key with the longest common prefix is next to its position in the order
        around = [key(rank) for rank in (low - 1, low) if 0 <= rank < len(places)]
        length = max((_shared(own, wanted) for own in around), default=0)
        if length < max(least, 1):
            return None
        prefix = wanted[: 4 * length]
        return Match(
            length, self, low - self._run(prefix, low, -1), low + self._run(prefix, low, 1)
        )

    def _run(self, prefix: bytes, near: int, sign: int) -> int:
        """Count adjacent suffixes with this prefix, from ``near`` on (``sign`` 1) or before it (-1)."""
        most = len(self._places) - near if sign > 0 else near

        def lacks(count: int) -> bool:
            rank = near + count - 1 if sign > 0 else near - count
            return count > most or self._key(rank, len(prefix)) != prefix

        step = 1
        while not lacks(step):
            step *= 2
        return step // 2 + bisect_left(range(step // 2 + 1, step), True, key=lacks)

    def largest(self) -> int:
        """Return the largest token, or END if there is none; suffixes are sorted with END last."""
        ranks, end = range(len(self._places)), b"\xff" * 4
        low = bisect_left(ranks, end, key=lambda rank: self._key(rank, 4))
        return int.from_bytes(self._key(low - 1, 4), "big") if low else END

    def text(self) -> Tokens:
        """Return all tokens in document order, with END before each document."""
        forward: Tokens = self._tokens[::-1].astype(np.int64)
        forward[forward == 0xFFFFFFFF] = END
        return forward

    def following(self, match: Match, length: int, most: int) -> Tokens:
        """Return what follows at most ``most`` places, [places, length], filled with END after its end."""
        ranks = np.arange(match.first, match.end)
        if len(ranks) > most:
            ranks = ranks[np.linspace(0, len(ranks) - 1, most).astype(np.int64)]
        at = self._order[ranks].astype(np.int64)[:, None] - np.arange(1, length + 1)
        found: Tokens = self._tokens.take(np.clip(at, 0, len(self._tokens) - 1)).astype(np.int64)
        over = (found == 0xFFFFFFFF) | (at < 0)
        found[np.logical_or.accumulate(over, axis=1)] = END
        return found


def open_shard(path: Path) -> Shard:
    """Map a file, reading only its header."""
    return Shard(open_arrays(path, SHAPES))


def _shared(key: bytes, wanted: bytes) -> int:
    """Count the tokens of the common prefix."""
    differ = (i for i, (a, b) in enumerate(zip(key, wanted, strict=False)) if a != b)
    return next(differ, min(len(key), len(wanted))) // 4


class SparseStore:
    """A datastore with its shards opened."""

    def __init__(self, shards: Sequence[Shard], depth: int) -> None:
        self.shards, self.depth = list(shards), depth
        self.name, self.vocabulary = "the datastore", 2**31

    def bind(self, name: str, vocabulary: int) -> None:
        """Raise UserError for tokens outside the model's vocabulary, here and later in ``following``.

        Here a binary search over the sorted suffixes finds the largest token; a damaged file may hide one, so
        ``following`` checks again.
        """
        self.name, self.vocabulary = name, vocabulary
        largest = max((shard.largest() for shard in self.shards), default=END)
        check_tokens(name, largest, vocabulary)

    @classmethod
    def open(cls, paths: Sequence[Path], depth: int) -> SparseStore:
        """Map the files, reading only headers."""
        return cls(list(map(open_shard, paths)), depth)

    def longest(self, context: Sequence[int], longest: int, shortest: int = 1) -> list[Match]:
        """Return the longest suffix of the context that is in the corpus, from every shard that has it."""
        longest = min(longest, self.depth, len(context))
        last = context[len(context) - longest :]
        wanted = np.array(last[::-1], ">i4").tobytes()
        found: list[Match] = []
        for shard in self.shards:
            match = shard.longest(wanted, found[0].length if found else shortest)
            if match is not None:
                if found and match.length > found[0].length:
                    found.clear()
                found.append(match)
        return found

    def following(self, matches: Sequence[Match], length: int, most: int) -> Tokens:
        """Return what follows in all shards, each in proportion to its number of places."""
        places = sum(match.count for match in matches)
        shares = [max(1, most * match.count // places) for match in matches]
        pairs = zip(matches, shares, strict=True)
        found = np.concatenate([match.shard.following(match, length, n) for match, n in pairs])
        check_tokens(self.name, int(found.max(initial=END)), self.vocabulary)
        return found


def check_tokens(name: str, largest: int, vocabulary: int) -> None:
    """Raise UserError if a datastore has a token that the model does not have."""
    if largest >= vocabulary:
        raise UserError(
            f"{name} contains token {largest}, beyond the model's vocabulary of"
            f" {vocabulary}: build one with this model's tokenizer, or use an intact copy"
        )
