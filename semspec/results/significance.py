"""Test differences of shares for significance: exact tests, and intervals that are valid for few trials."""

from __future__ import annotations

import math
from collections.abc import Sequence

from semspec.results.attempts import Groups, counts_of, mean_of, worth
from semspec.results.metrics import Z95, Interval, wilson

ALPHA = 0.05
FEWEST = 6  # problems: five that all point one way happen by chance once in 16 times


Sides = Sequence[tuple[bool, bool]]
"""A's and B's answers to one problem, attempt by attempt: are they right?"""


def paired_by_problem(groups: Sequence[Sides], z: float = Z95) -> tuple[float, Interval]:
    """Return B's share minus A's over the same problems, and its interval over problems.

    It is Newcombe's interval (``paired_difference``), with as many answers as the attempts are worth.
    """
    kinds = ((True, True), (True, False), (False, True), (False, False))
    answers, trials = sum(map(len, groups)), worth([[b - a for a, b in g] for g in groups], z)
    if answers == trials == len(groups):
        both, lost, won, neither = (sum(g.count(kind) for g in groups) for kind in kinds)
        return (won - lost) / answers, paired_difference(both, lost, won, neither, z)
    shares = [mean_of([[pair == kind for pair in g] for g in groups]) for kind in kinds]
    a, b, c, d = (share * trials for share in shares)
    return shares[2] - shares[1], paired_difference(a, b, c, d, z)


def by_problem_apart(a: Groups, b: Groups, z: float = Z95) -> tuple[float, Interval, float]:
    """Return B's share minus A's over different problems, its interval over problems, and a two-sided p-value.

    With one answer per problem the p-value is that of the exact permutation test; otherwise it is the level at which the
    interval starts to include 0.
    """
    if all(len(group) == 1 for group in (*a, *b)):
        counts = int(sum(map(sum, a))), len(a), int(sum(map(sum, b))), len(b)
        value = counts[2] / counts[3] - counts[0] / counts[1]
        return value, apart(a, b, z), permutation(*counts)

    def interval_of(z: float) -> Interval:
        return apart(a, b, z)

    low, high = 0.0, 12.0  # bisect for the widest interval that excludes 0
    for _ in range(60):
        middle = (low + high) / 2
        ends = interval_of(middle)
        low, high = (low, middle) if ends[0] <= 0 <= ends[1] else (middle, high)
    return mean_of(b) - mean_of(a), interval_of(z), math.erfc(low / math.sqrt(2))


def apart(a: Groups, b: Groups, z: float = Z95) -> Interval:
    """Return the interval of B's share minus A's over different problems."""
    (right_a, n_a), (right_b, n_b) = (counts_of(side, z) for side in (a, b))
    return difference(right_a, n_a, right_b, n_b, z)


def paired_difference(
    both: float, only_a: float, only_b: float, neither: float, z: float = Z95
) -> Interval:
    """Return the interval of B's share minus A's over the same trials: Newcombe (1998), Statistics in Medicine 17, method 10.

    Unlike a bootstrap interval, it has a width even if no trial changed sides. ``z``: 95 % by default.
    """
    n = both + only_a + only_b + neither
    a, b = both + only_a, both + only_b
    margins = a * (n - a) * b * (n - b)
    excess = both * neither - only_a * only_b
    phi = 0.0  # correlation of the two, corrected for continuity
    if margins:
        phi = (max(excess - n / 2, 0.0) if excess > 0 else excess) / math.sqrt(margins)
    return _newcombe(a, n, b, n, phi, z)


def difference(right_a: float, n_a: float, right_b: float, n_b: float, z: float = Z95) -> Interval:
    """Return the interval of B's share minus A's over different trials: Newcombe (1998), 17, 873-890, method 10."""
    return _newcombe(right_a, n_a, right_b, n_b, 0.0, z)


def _newcombe(
    right_a: float, n_a: float, right_b: float, n_b: float, phi: float, z: float
) -> Interval:
    spread_a, spread_b = wilson(right_a, n_a, z), wilson(right_b, n_b, z)
    assert spread_a is not None and spread_b is not None, (n_a, n_b)
    a, b = right_a / n_a, right_b / n_b

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    low = reach(b - spread_b[0], spread_a[1] - a)
    high = reach(spread_b[1] - b, a - spread_a[0])
    return max(-1.0, b - a - low), min(1.0, b - a + high)


def permutation(right_a: int, n_a: int, right_b: int, n_b: int) -> float:
    """Return the two-sided p-value over all assignments of the answers to the two runs (Fisher's exact test)."""
    right, n = right_a + right_b, n_a + n_b
    whole = math.comb(n, right)

    def ways(k: int) -> int:
        return math.comb(n_a, k) * math.comb(n_b, right - k)

    seen = ways(right_a)
    possible = range(max(0, right - n_b), min(n_a, right) + 1)
    return sum(w for w in map(ways, possible) if w <= seen) / whole


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for multiple comparisons by Holm's correction (1979)."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, i) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * p))
        adjusted[i] = worst
    return adjusted
