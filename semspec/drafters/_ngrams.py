"""Find in constant time what last followed a short run of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    start: int  # position of the token that followed
    length: int  # tokens that agree before it


class NGrams:
    """The newest continuation of every run of up to ``longest`` tokens.

    A run is indexed once a token follows it, so that the end of the text never matches itself.
    """

    def __init__(self, longest: int, shortest: int = 1) -> None:
        self.longest, self.shortest = longest, shortest
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0  # positions that are indexed as a continuation

    def learn(self, tokens: Sequence[int]) -> None:
        """Index what was appended since the last call."""
        lengths, after = range(self.shortest, self.longest + 1), self._after
        for position in range(self._known, len(tokens)):
            for length in lengths:
                if length > position:
                    break
                after[tuple(tokens[position - length : position])] = position
        self._known = len(tokens)

    def find(self, tail: Sequence[int]) -> Match | None:
        """Return the newest continuation of the longest known run that ``tail`` ends with."""
        for length in range(min(self.longest, len(tail)), self.shortest - 1, -1):
            start = self._after.get(tuple(tail[-length:]))
            if start is not None:
                return Match(start, length)
        return None
