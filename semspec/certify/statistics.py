"""The tests of a certificate: exact at any time, or at its end; and what they would have found.

Two kinds share the error rate. *Evidence* is a nonnegative martingale that starts at 1 if the law is right, so it
may be looked at after every batch: it exceeds 1/alpha with a probability of at most alpha, ever (Ville 1939). At the
end there are chi-square tests, one for each prefix, place and suspicion, corrected by Holm. Chi-square's
approximation is trusted far from the threshold only; near it the statistic is drawn again from the law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special
from scipy.optimize import brentq

LEAST = 5.0  # counts that a cell must be expected to have
NEAR = 0.05  # p-values below it are drawn anew
DRAWS = 20_000
STRENGTHS = (
    5.0,
    50.0,
    500.0,
)  # of the belief in the law, in counts: for large, middling, small faults

Counts = Sequence[int]
Probs = Sequence[float]


@dataclass(frozen=True)
class Found:
    """One test's statistic and p-value."""

    statistic: float
    freedom: int
    p: float


def pooled(probs: Probs, n: int, least: float = LEAST) -> list[int]:
    """Return for each cell the pool that it is counted in: cells that are expected too rarely share one."""
    pools = [-1] * len(probs)
    kept = [i for i, p in enumerate(probs) if p * n >= least]
    for number, i in enumerate(kept):
        pools[i] = number
    rare = math.fsum(p for i, p in enumerate(probs) if pools[i] < 0) * n
    if not kept:
        return [0] * len(probs)
    # what is still too rare goes to the rarest cell that is not
    last = len(kept) if rare >= least else pools[min(kept, key=lambda i: probs[i])]
    return [last if pool < 0 else pool for pool in pools]


def add_up(values: Sequence[float], pools: Sequence[int]) -> np.ndarray:
    """Add values up by pool."""
    return np.bincount(pools, weights=np.asarray(values, float))


def statistic(counts: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return Pearson's chi-square over the last axis."""
    return ((counts - expected) ** 2 / expected).sum(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Cells:
    """Counts in cells and the probability of each: one group of a test."""

    counts: np.ndarray
    probs: np.ndarray

    @classmethod
    def of(cls, counts: Counts, probs: Probs) -> Cells:
        """Pool cells that are expected too rarely."""
        pools = pooled(probs, sum(counts))
        shares = add_up(probs, pools)
        return cls(add_up([float(c) for c in counts], pools), shares / shares.sum())

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def freedom(self) -> int:
        return len(self.probs) - 1

    def statistic(self) -> float:
        return float(statistic(self.counts, self.n * self.probs))

    def draws(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return the statistic of as many counts again, drawn from the law."""
        return statistic(rng.multinomial(self.n, self.probs, count), self.n * self.probs)


def chi_square(groups: Sequence[Cells], rng: np.random.Generator, draws: int = DRAWS) -> Found:
    """Test if all groups' counts are drawn from their laws, by the sum of their statistics.

    ``draws``: with 0, chi-square's approximation is taken as it is.
    """
    used = [group for group in groups if group.freedom > 0 and group.n > 0]
    freedom = sum(group.freedom for group in used)
    if not freedom:
        return Found(0.0, 0, 1.0)
    value = math.fsum(group.statistic() for group in used)
    p = float(special.chdtrc(freedom, value))
    if p < NEAR and draws:
        again = np.sum([group.draws(rng, draws) for group in used], axis=0)
        p = (1 + int((again >= value).sum())) / (draws + 1)
    return Found(value, freedom, p)


def same_source(
    a: np.ndarray, b: np.ndarray, rng: np.random.Generator, draws: int = DRAWS
) -> Found:
    """Test if two samples' counts in the same cells come from one distribution, which is not known."""
    total, n_a, n_b = a + b, a.sum(), b.sum()
    n = n_a + n_b
    if len(total) < 2 or not n_a or not n_b:
        return Found(0.0, 0, 1.0)

    def value_of(first: np.ndarray) -> np.ndarray:
        expected = total * n_a / n
        return ((first - expected) ** 2 / (expected * n_b / n)).sum(-1)  # type: ignore[no-any-return]

    value, freedom = float(value_of(a)), len(total) - 1
    p = float(special.chdtrc(freedom, value))
    if p < NEAR and draws:  # all ways to deal the outcomes to the two servers
        again = value_of(rng.multivariate_hypergeometric(total.astype(int), int(n_a), draws))
        p = (1 + int((again >= value - 1e-9).sum())) / (draws + 1)
    return Found(value, freedom, p)


def too_many(seen: int, chances: Sequence[tuple[int, float]]) -> Found:
    """Test if something came more often than in independent trials: pairs of (trials, probability)."""
    mean = math.fsum(n * p for n, p in chances)
    trials = sum(n for n, _ in chances)
    if not trials:
        return Found(0.0, 0, 1.0)
    # trials of unequal chances spread less than as many of their mean (Hoeffding 1956): on the safe side
    p = 1.0 if seen <= mean else float(special.betainc(seen, trials - seen + 1, mean / trials))
    return Found(float(seen), 1, p)


@dataclass
class Evidence:
    """How much better counts were predicted by what was counted before than by the law.

    The prediction mixes the law with the counts so far: a Dirichlet prior at the law, of several strengths.
    """

    probs: Sequence[float]
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.probs)
        law = np.asarray(self.probs, float)
        self._known = law > 0
        law = law[self._known] / law.sum()
        self._logs = np.log(law)
        self._prior = np.multiply.outer(
            np.array(STRENGTHS), law
        )  # counts that the belief stands for
        self._before = special.gammaln(self._prior).sum(-1)

    def add(self, cell: int) -> None:
        self.counts[cell] += 1

    def log(self) -> float:
        """Return its logarithm."""
        counts = np.asarray(self.counts, float)
        if counts[~self._known].any():
            return math.inf
        counts = counts[self._known]
        n, own = counts.sum(), float(counts @ self._logs)
        after = special.gammaln(self._prior + counts).sum(-1) - self._before - own
        return log_mean([
            float(one) + math.lgamma(s) - math.lgamma(s + n)
            for one, s in zip(after, STRENGTHS, strict=True)
        ])  # fmt: skip


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of numbers, given their logarithms."""
    most = max(logs)
    if math.isinf(most):
        return most
    return most + math.log(math.fsum(math.exp(one - most) for one in logs) / len(logs))


class Pairing:
    """Evidence that two sources differ, without knowing either law.

    An outcome of each is taken as a pair. If the sources are alike, it might as well have been the other way round;
    so the evidence is twice the chance that was given to the way it was, by what each had written before.
    """

    def __init__(self) -> None:
        self._a: dict[object, int] = {}
        self._b: dict[object, int] = {}
        self._n = 0
        self.log = 0.0

    def add(self, a: object, b: object) -> None:
        kinds = len(self._a.keys() | self._b.keys()) + 1
        if a != b:
            own = self._chance(self._a, a, kinds) * self._chance(self._b, b, kinds)
            turned = self._chance(self._a, b, kinds) * self._chance(self._b, a, kinds)
            self.log += math.log(2.0 * own / (own + turned))
        self._a[a] = self._a.get(a, 0) + 1
        self._b[b] = self._b.get(b, 0) + 1
        self._n += 1

    def _chance(self, known: Mapping[object, int], outcome: object, kinds: int) -> float:
        """Return what an outcome is predicted with: its share in one source, pulled to that in both."""
        both = (self._a.get(outcome, 0) + self._b.get(outcome, 0) + 1.0) / (2 * self._n + kinds)
        strength = 20.0
        return (known.get(outcome, 0) + strength * both) / (self._n + strength)


# ---- what would have been found -------------------------------------------------------------------


def noncentrality(freedom: int, alpha: float, power: float) -> float:
    """Return the noncentrality that a chi-square test of this level finds with this power."""
    limit = float(special.chdtri(freedom, alpha))

    def missed(value: float) -> float:
        return float(special.chndtr(limit, freedom, value)) - (1.0 - power)

    high = 1.0
    while missed(high) > 0:
        high *= 2.0
    return float(brentq(missed, 0.0, high))


def detectable(n: int, freedom: int, alpha: float, power: float, samples: int = 1) -> float:
    """Return the total variation from which on a chi-square test finds *any* other law of the cells.

    A law at a distance t has a chi-square divergence of at least 4 t^2 (the least where t is moved between two halves of
    the mass), hence a noncentrality of at least 4 n t^2; over two samples of n, each of them counts half.
    """
    if n < 1 or freedom < 1:
        return 1.0
    needed = noncentrality(freedom, alpha, power)
    return min(1.0, math.sqrt(needed * samples / (4.0 * n)))


def needed(distance: float, freedom: int, alpha: float, power: float, samples: int = 1) -> int:
    """Return the outcomes that make ``distance`` detectable."""
    return math.ceil(noncentrality(max(1, freedom), alpha, power) * samples / (4.0 * distance**2))
