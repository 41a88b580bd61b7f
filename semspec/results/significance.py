"""Test shares for differences beyond chance: exact tests, and intervals that hold for few trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

from semspec.results.metrics import Z95, Interval, wilson

ALPHA = 0.05
FEWEST = 6  # problems: five that all point the same way happen by chance once in 16


def paired_difference(
    both: int, only_a: int, only_b: int, neither: int, z: float = Z95
) -> Interval:
    """Return the interval of B's share minus A's over the same trials: Newcombe (1998), Statistics in Medicine 17, method 10.

    Unlike a bootstrap it has a width where no trial changed sides. ``z``: 95 % by default.
    """
    n = both + only_a + only_b + neither
    a, b = both + only_a, both + only_b
    margins = a * (n - a) * b * (n - b)
    excess = both * neither - only_a * only_b
    phi = 0.0  # correlation of the two, corrected for continuity
    if margins:
        phi = (max(excess - n / 2, 0.0) if excess > 0 else excess) / math.sqrt(margins)
    return _newcombe(a, n, b, n, phi, z)


def difference(right_a: int, n_a: int, right_b: int, n_b: int, z: float = Z95) -> Interval:
    """Return the interval of B's share minus A's over different trials: Newcombe (1998), 17, 873-890, method 10."""
    return _newcombe(right_a, n_a, right_b, n_b, 0.0, z)


def _newcombe(right_a: int, n_a: int, right_b: int, n_b: int, phi: float, z: float) -> Interval:
    spread_a, spread_b = wilson(right_a, n_a, z), wilson(right_b, n_b, z)
    assert spread_a is not None and spread_b is not None, (n_a, n_b)
    a, b = right_a / n_a, right_b / n_b

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    low = reach(b - spread_b[0], spread_a[1] - a)
    high = reach(spread_b[1] - b, a - spread_a[0])
    return max(-1.0, b - a - low), min(1.0, b - a + high)


def permutation(right_a: int, n_a: int, right_b: int, n_b: int) -> float:
    """Return the two-sided p-value over all ways to deal the answers to the runs (Fisher's exact test)."""
    right, n = right_a + right_b, n_a + n_b
    whole = math.comb(n, right)

    def ways(k: int) -> int:
        return math.comb(n_a, k) * math.comb(n_b, right - k)

    seen = ways(right_a)
    possible = range(max(0, right - n_b), min(n_a, right) + 1)
    return sum(w for w in map(ways, possible) if w <= seen) / whole


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's (1979) correction: of many comparisons some look unlike by chance alone."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, i) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * p))
        adjusted[i] = worst
    return adjusted
