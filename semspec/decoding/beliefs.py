"""Estimate how likely drafted tokens are to be accepted, from what is known before the target reads them.

Tokens are counted by a *signal*: the token's source, its drafter's own confidence, its depth in the draft, and
how the last draft went. A rare signal is shrunk towards the counts of its prefixes: a long match towards all
long matches, and these towards all matches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from semspec.decoding.costs import bin_of

Signal: TypeAlias = tuple[str, ...]

MEMORY = 300  # drafted tokens counted per signal; beyond that, older ones fade
WEIGHT = 6.0  # prior weight of a signal's prefix, in tokens
FIRST = 0.5  # chance of a token while nothing is known
REFRESH = 8  # rounds between updates of the chances
# signals of whole paths do not shrink towards the nodes of trees, most of which are wrong because a sibling is right
PATHS = ("chain",), ("before",)
EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)


def likely(probability: float) -> str:
    """Return the part of a signal that stands for a drafter's own probability."""
    return f"q{bisect_right(EDGES, probability)}"


_MIDDLES = {
    likely(low): (low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)
}


def deep(depth: int) -> str:
    """Return the part of a signal that stands for a depth, from 1."""
    return str(bin_of(depth))


class Beliefs:
    """Acceptance chances by signal, from counts."""

    def __init__(self, first: float = FIRST) -> None:
        self.first = first
        self.counts: dict[Signal, list[float]] = {}  # kept, and tried
        # the counts of a signal and of its prefixes
        self._lines: dict[Signal, list[list[float]]] = {}
        self._chances: dict[Signal, float] = {}
        self._rounds = 0

    def chance(self, signal: Signal) -> float:
        """Return the chance that a token with this signal is kept if those before it are."""
        known = self._chances.get(signal)
        if known is None:
            known = self._chances[signal] = self._chance(signal)
        return known

    @property
    def ever(self) -> bool:
        """True once a drafted token was kept."""
        return self.counts.get((), (0.0, 0.0))[0] > 0

    def tried(self, signal: Signal) -> float:
        """Return how many tokens with this signal were counted."""
        return self.counts.get(signal, (0.0, 0.0))[1]

    def _chance(self, signal: Signal) -> float:
        kept, tried = self.counts.get(signal, (0.0, 0.0))
        if not signal:
            return (kept + WEIGHT * self.first) / (tried + WEIGHT)
        # a model's own probability is a better guess than the average over its tokens
        above = _MIDDLES.get(signal[-1])
        if above is None:
            above = (
                (kept + WEIGHT * self.first) / (tried + WEIGHT)
                if signal in PATHS
                else self._chance(signal[:-1])
            )
        return (kept + WEIGHT * above) / (tried + WEIGHT)

    def learn(
        self, tried: Iterable[tuple[Signal, bool]], at_once: bool = False, weight: float = 1.0
    ) -> None:
        """Count which tokens of one round were kept.

        ``at_once``: the next chance already knows it, as it should where a round is long; otherwise after some rounds.
        ``weight``: what a token counts, below 1 if many rounds at the same time tell about the same.
        """
        for signal, kept in tried:
            if (line := self._lines.get(signal)) is None:
                line = self._lines[signal] = self._line(signal)
            for counts in line:
                if counts[1] >= MEMORY:
                    counts[0] *= 1 - 1 / MEMORY
                    counts[1] *= 1 - 1 / MEMORY
                counts[0] += weight * kept
                counts[1] += weight
        self._rounds += 1
        if at_once or self._rounds % REFRESH == 0 or self._rounds < 4 * REFRESH:
            self._chances.clear()

    def _line(self, signal: Signal) -> list[list[float]]:
        """Return the counts of a signal and of its prefixes; begin those that are missing."""
        prefixes = (signal[:length] for length in range(len(signal) + 1))
        return [self.counts.setdefault(prefix, [0.0, 0.0]) for prefix in prefixes]

    def doubt(self, signal: Signal, share: float) -> None:
        """Let this share of a signal's counts be forgotten, because what they say may have changed and is no longer tried."""
        for length in (len(signal) - 1, len(signal)):
            if (counts := self.counts.get(signal[:length])) is not None:
                counts[:] = [count * (1 - share) for count in counts]

    def told(self) -> list[list[Any]]:
        """Return the counts as JSON."""
        return [
            [list(signal), kept, tried] for signal, (kept, tried) in sorted(self.counts.items())
        ]

    @classmethod
    def of(cls, told: Sequence[Sequence[Any]], first: float = FIRST) -> Beliefs:
        """Rebuild beliefs from ``told``; raise ValueError or TypeError if it is something else."""
        made = cls(first)
        for signal, kept, tried in told:
            made.counts[tuple(map(str, signal))] = [float(kept), float(tried)]
        return made
