"""Suffix automaton of a growing text: finds its longest repeated suffix, and where that last occurred.

Blumer et al. 1985; online construction with constant amortised work per token. A state stands for
all substrings that end at the same positions; its link leads to the longest of their suffixes that
ends at more positions. The states that hold suffixes of the whole text are therefore the path along
links from the newest state to the root; the longest suffix that occurred before is one step along it.

Finding the *newest* earlier occurrence would take a walk along the whole path for every token. Only
the part for suffixes of up to ``longest`` tokens is walked: at most that many steps, however long the
text. Matches are not longer, either.
"""

from __future__ import annotations

from collections.abc import Iterable

from semspec.drafters._ngrams import Match

ROOT = 0


class SuffixAutomaton:
    """All substrings of a growing text."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.size = 0  # tokens of the text
        self.match: Match | None = None  # of the text's end with an earlier place
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest substring of a state
        self._newest = [0]  # position after its last occurrence; exact up to ``longest`` tokens
        self._whole = ROOT  # the state of the whole text
        self._tail = ROOT  # the state of its last ``longest`` tokens

    def _state(self, following: dict[int, int], link: int, length: int, newest: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._newest.append(newest)
        return len(self._link) - 1

    def extend(self, tokens: Iterable[int]) -> None:
        following, link, length = self._next, self._link, self._length
        for token in tokens:
            state = self._whole
            self.size += 1
            new = self._whole = self._state({}, ROOT, self.size, self.size)
            while state >= 0 and token not in following[state]:
                following[state][token] = new
                state = link[state]
            if state >= 0:
                there = following[state][token]
                exact = length[there] == length[state] + 1
                link[new] = there if exact else self._split(there, state, token)
            self._look_back(token)

    def _split(self, state: int, before: int, token: int) -> int:
        """Move a state's shorter substrings, which now end here as well, to a new state; return that."""
        following, link = self._next, self._link
        length = self._length[before] + 1
        shorter = self._state(dict(following[state]), link[state], length, self._newest[state])
        link[state] = shorter
        while before >= 0 and following[before].get(token) == state:
            following[before][token] = shorter
            before = link[before]
        return shorter

    def _look_back(self, token: int) -> None:
        """Find the longest suffix that occurred before, and where; then record that it is here."""
        link, length, newest = self._link, self._length, self._newest
        if self.size <= self.longest:
            self._tail = self._whole
        else:
            tail = self._tail
            if length[link[tail]] >= self.longest:  # it was split
                tail = link[tail]
            tail = self._next[tail][token]  # of longest + 1 tokens
            self._tail = link[tail] if length[link[tail]] >= self.longest else tail
        state = link[self._whole] if self._tail == self._whole else self._tail
        self.match = None
        if state > ROOT:
            self.match = Match(newest[state], min(length[state], self.longest))
        while state > ROOT:
            newest[state] = self.size
            state = link[state]
