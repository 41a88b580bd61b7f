"""The tests of a certificate, valid at any time or at its end, and the faults that they can detect.

Two kinds of tests share the error rate. *Evidence* is a nonnegative martingale that starts at 1 if the law is right, so
it may be checked after every batch: the probability that it ever exceeds 1/alpha is at most alpha (Ville 1939). At the
end there are chi-square tests, one for each prefix, place and suspicion, corrected by Holm. The chi-square approximation
is trusted only far from the threshold; near it, the statistic is simulated from the law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special
from scipy.optimize import brentq

LEAST = 5.0  # the lowest expected count of a cell
NEAR = 0.05  # smaller p-values are simulated
DRAWS = 20_000  # simulations
# of the prior belief in the law, in counts: for large, medium and small faults
STRENGTHS = (
    5.0,
    50.0,
    500.0,
)

Counts = Sequence[int]
Probs = Sequence[float]


@dataclass(frozen=True)
class Found:
    """One test's statistic and p-value."""

    statistic: float
    freedom: int
    p: float


def pooled(probs: Probs, n: int, least: float = LEAST) -> list[int]:
    """Return the pool of each cell; cells with too low an expected count share one."""
    pools = [-1] * len(probs)
    kept = [i for i, p in enumerate(probs) if p * n >= least]
    for number, i in enumerate(kept):
        pools[i] = number
    rare = math.fsum(p for i, p in enumerate(probs) if pools[i] < 0) * n
    if not kept:
        return [0] * len(probs)
    # if the shared pool is still too rare, it joins the rarest of the other cells
    last = len(kept) if rare >= least else pools[min(kept, key=lambda i: probs[i])]
    return [last if pool < 0 else pool for pool in pools]


def add_up(values: Sequence[float], pools: Sequence[int]) -> np.ndarray:
    """Return the sum of the values in each pool."""
    return np.bincount(pools, weights=np.asarray(values, float))


def statistic(counts: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return Pearson's chi-square over the last axis."""
    return ((counts - expected) ** 2 / expected).sum(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Cells:
    """Counts in cells and the probability of each cell: one group of a test."""

    counts: np.ndarray
    probs: np.ndarray

    @classmethod
    def of(cls, counts: Counts, probs: Probs) -> Cells:
        """Pool the cells with too low an expected count."""
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
        """Return ``count`` simulated values of the statistic, for as many outcomes drawn from the law."""
        return statistic(rng.multinomial(self.n, self.probs, count), self.n * self.probs)


def chi_square(groups: Sequence[Cells], rng: np.random.Generator, draws: int = DRAWS) -> Found:
    """Test whether all groups' counts are drawn from their laws, by the sum of their statistics.

    ``draws``: the number of simulations near the threshold; 0: use only the chi-square approximation.
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
    """Test whether two samples' counts in the same cells come from one unknown distribution."""
    total, n_a, n_b = a + b, a.sum(), b.sum()
    n = n_a + n_b
    if len(total) < 2 or not n_a or not n_b:
        return Found(0.0, 0, 1.0)

    def value_of(first: np.ndarray) -> np.ndarray:
        expected = total * n_a / n
        return ((first - expected) ** 2 / (expected * n_b / n)).sum(-1)  # type: ignore[no-any-return]

    value, freedom = float(value_of(a)), len(total) - 1
    p = float(special.chdtrc(freedom, value))
    if p < NEAR and draws:  # simulate random ways to deal the outcomes to the two servers
        again = value_of(rng.multivariate_hypergeometric(total.astype(int), int(n_a), draws))
        p = (1 + int((again >= value - 1e-9).sum())) / (draws + 1)
    return Found(value, freedom, p)


def too_many(seen: int, chances: Sequence[tuple[int, float]]) -> Found:
    """Test whether an event was seen too often for independent trials; ``chances``: pairs of (trials, probability)."""
    mean = math.fsum(n * p for n, p in chances)
    trials = sum(n for n, _ in chances)
    if not trials:
        return Found(0.0, 0, 1.0)
    # conservative: trials with unequal probabilities spread less than trials with their mean (Hoeffding 1956)
    p = 1.0 if seen <= mean else float(special.betainc(seen, trials - seen + 1, mean / trials))
    return Found(float(seen), 1, p)


@dataclass
class Evidence:
    """How much better earlier outcomes predicted the next ones than the law did.

    The prediction mixes the law with the counts so far: a Dirichlet prior centred on the law, with several strengths.
    """

    probs: Sequence[float]
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * len(self.probs)
        law = np.asarray(self.probs, float)
        self._known = law > 0
        law = law[self._known] / law.sum()
        self._logs = np.log(law)
        # pseudo-counts of the prior, by strength
        self._prior = np.multiply.outer(np.array(STRENGTHS), law)
        self._before = special.gammaln(self._prior).sum(-1)

    def add(self, cell: int) -> None:
        self.counts[cell] += 1

    def log(self) -> float:
        """Return the natural logarithm of the evidence."""
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

    Outcomes are paired, one of each source. If the sources are alike, a pair is as likely the other way round. So each
    pair multiplies the evidence by twice the probability of its actual order, predicted from each source's earlier outcomes.
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
        """Return an outcome's predicted probability: its share in one source, shrunk towards its share in both."""
        both = (self._a.get(outcome, 0) + self._b.get(outcome, 0) + 1.0) / (2 * self._n + kinds)
        strength = 20.0
        return (known.get(outcome, 0) + strength * both) / (self._n + strength)


# ---- detectable faults ----------------------------------------------------------------------------


def noncentrality(freedom: int, alpha: float, power: float) -> float:
    """Return the noncentrality that a chi-square test at level ``alpha`` detects with this power."""
    limit = float(special.chdtri(freedom, alpha))

    def missed(value: float) -> float:
        return float(special.chndtr(limit, freedom, value)) - (1.0 - power)

    high = 1.0
    while missed(high) > 0:
        high *= 2.0
    return float(brentq(missed, 0.0, high))


def detectable(n: int, freedom: int, alpha: float, power: float, samples: int = 1) -> float:
    """Return the total variation from which on a chi-square test detects *any* other law of the cells.

    A law at distance t has a chi-square divergence of at least 4 t^2 (reached if t is moved between two halves of the
    mass), hence a noncentrality of at least 4 n t^2. With two samples of n outcomes, each counts half.
    """
    if n < 1 or freedom < 1:
        return 1.0
    needed = noncentrality(freedom, alpha, power)
    return min(1.0, math.sqrt(needed * samples / (4.0 * n)))


def needed(distance: float, freedom: int, alpha: float, power: float, samples: int = 1) -> int:
    """Return how many outcomes make ``distance`` detectable."""
    return math.ceil(noncentrality(max(1, freedom), alpha, power) * samples / (4.0 * distance**2))
