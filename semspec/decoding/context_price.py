"""The price of the context: how much longer a pass takes for each cached position.

Attention fetches every cached position once per pass, and computes with it once per token fed:

    seconds = line(size) + context * (fetched + computed * size),    fetched, computed >= 0

``line`` is measured for each size (``costs.Curve``). The two prices are a least-squares fit to *deviations*: how much
longer a pass took than others of about its size, against how much longer its context was. They stay 0 until the
measurements leave no doubt, because a machine that slows down while a text grows looks much the same. Until a kind of
query has shown its own prices, those of related kinds stand in (``lean``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FADES = 1 - 1 / 512  # weight of earlier deviations at each new one
LEAST = 16.0  # least deviations for a fit
# prior: as if ASSUMED passes had taken no longer although their contexts were LONGER positions longer
ASSUMED, LONGER = 16.0, 128.0
DOUBT = 24.0  # F statistic below which the fit may be an accident: lasting noise looks like many measurements
CLIP = 4.0  # clip deviations at this many times the usual one
# the usual deviation before any was seen, and the range of counts it is averaged over
USUAL, FEW, MANY = 0.1, 8.0, 64.0
SHARE = 0.1  # least share for each of the two prices where the data cannot tell them apart


@dataclass(slots=True)
class ContextPrice:
    """Seconds per cached position, learned from deviations one by one."""

    fetched: float = 0.0  # seconds per position and pass
    computed: float = 0.0  # seconds per position and unit of the pass's size
    sure: float = field(default=0.0, init=False)  # share of the fit that counts, 0 to 1
    # the fitted prices times ``sure``
    own: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    usual: float = field(default=USUAL, init=False)  # average relative deviation from the fit
    count: float = field(default=0.0, init=False)  # faded number of deviations
    each: float = field(default=0.0, init=False)  # seconds per further unit of size within a range
    # faded sums of squares and products of both prices' regressors, the size and the seconds
    _sums: tuple[float, ...] = field(default=(0.0,) * 10, init=False)
    _spread: float = field(default=0.0, init=False)  # faded sum of squared context differences

    def of(self, size: float) -> float:
        """Return the seconds of one more cached position in a pass of this size."""
        return self.fetched + self.computed * size

    def add(
        self,
        size: float,
        seconds: float,
        *,
        longer: float,
        farther: float,
        slower: float,
        weight: float,
    ) -> None:
        """Count how a pass differs from the mean of others of about its ``size``, which took ``seconds``.

        It is ``longer`` by so many units, has ``farther`` more cached positions, and took ``slower`` more seconds.
        ``weight``: below 1 where the mean is of few passes.
        """
        expected = farther * self.of(size) + longer * self.each
        limit = CLIP * self.usual * seconds
        surprise = min(max(slower - expected, -limit), limit)
        steps = min(FEW + self.count, MANY)
        self.usual += (abs(surprise) / seconds - self.usual) / steps
        a, c = farther / seconds, longer / seconds
        b, y = a * size, (expected + surprise) / seconds
        aa, ab, bb, ac, bc, cc, ay, by, cy, yy = self._sums
        keep, wa, wb, wc, wy = FADES, weight * a, weight * b, weight * c, weight * y
        self._sums = (
            keep * aa + wa * a, keep * ab + wa * b, keep * bb + wb * b, keep * ac + wa * c,
            keep * bc + wb * c, keep * cc + wc * c, keep * ay + wa * y, keep * by + wb * y,
            keep * cy + wc * y, keep * yy + wy * y,
        )  # fmt: skip
        self._spread = keep * self._spread + weight * farther * farther
        self.count = keep * self.count + weight

    def fit(self, growing: float) -> None:
        """Fit the prices; ``growing``: the share of a usual pass's seconds that grows with its size.

        Where all passes had about one size, the two prices are divided as the seconds are.
        """
        if self.count < LEAST or not self._spread:
            return
        aa, ab, bb, ac, bc, cc, ay, by, cy, yy = self._sums
        if cc:  # first remove what differences of size within a range explain
            aa, ab, bb = aa - ac * ac / cc, ab - ac * bc / cc, bb - bc * bc / cc
            ay, by, yy = ay - ac * cy / cc, by - bc * cy / cc, yy - cy * cy / cc
        growing = min(max(growing, SHARE), 1 - SHARE)
        # ridge penalty, relative to the spread of contexts
        assumed = ASSUMED * LONGER * LONGER / self._spread
        fetched, computed = _nonnegative(
            aa * (1 + assumed / (1 - growing)), ab, bb * (1 + assumed / growing), ay, by
        )
        explained = (
            2 * (fetched * ay + computed * by)
            - (aa * fetched * fetched + 2 * ab * fetched * computed + bb * computed * computed)
        )  # fmt: skip
        left = max(yy - explained, 1e-9 * yy) / max(self.count - 4, 1.0)
        sure = max(1 - DOUBT * left / explained, 0.0) if explained > 0 else 0.0
        self.sure, self.own = sure, (sure * fetched, sure * computed)
        self.fetched, self.computed = self.own
        if cc:
            self.each = max((cy - self.fetched * ac - self.computed * bc) / cc, 0.0)

    def lean(self, fetched: float, computed: float) -> None:
        """Fill in a related kind's prices for the share that this one's own fit leaves open."""
        doubt = 1 - self.sure
        self.fetched = self.own[0] + doubt * fetched
        self.computed = self.own[1] + doubt * computed


def _nonnegative(aa: float, ab: float, bb: float, ay: float, by: float) -> tuple[float, float]:
    """Return the non-negative least-squares solution for two unknowns."""
    if aa <= 0 or bb <= 0:
        return 0.0, 0.0
    rest = aa * bb - ab * ab
    if rest > 1e-12 * aa * bb:
        first, second = (ay * bb - by * ab) / rest, (by * aa - ay * ab) / rest
        if first >= 0 and second >= 0:
            return first, second
        if first < 0:
            return 0.0, max(by / bb, 0.0)
    return max(ay / aa, 0.0), 0.0


def checked(fetched: float, computed: float) -> ContextPrice:
    """Return recorded prices; raise ValueError if they are negative or not finite."""
    if not (0 <= fetched < math.inf and 0 <= computed < math.inf):
        raise ValueError(f"no prices of a position: {fetched}, {computed}")
    return ContextPrice(fetched, computed)
