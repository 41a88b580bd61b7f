"""The price of the context: how much longer a pass takes for each position that is cached before it.

Attention fetches every cached position once for a pass, and computes with it once for each token fed:

    seconds = line(size) + context * (fetched + computed * size),    fetched, computed >= 0

``line`` is what was measured of each size (``costs.Curve``). The two prices are a least-squares fit to *deviations*: how much
longer a pass took than others of about its size, against how much longer its context was. They are 0 until
measurements leave no doubt, since a machine that slows down while a text grows looks much the same. As long as a kind of
question has not shown its prices, those of related kinds stand in (``lean``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FADES = 1 - 1 / 512  # of what earlier deviations said, at each new one
LEAST = 16.0  # deviations without which nothing is said
# what is assumed beforehand: so many passes that took no longer, though their contexts were so much longer
ASSUMED, LONGER = 16.0, 128.0
DOUBT = 24.0  # F below which the fit may be an accident: noise that lasts for a while looks like many measurements
CLIP = 4.0  # times the usual deviation from the fit: what is farther off counts as so far
USUAL, FEW, MANY = (
    0.1,
    8.0,
    64.0,
)  # deviations before any was seen, and over how many they are averaged
SHARE = 0.1  # at least, of what cannot be told apart, that each of the two prices gets


@dataclass(slots=True)
class ContextPrice:
    """Seconds of a cached position, learned from deviations that are given one by one."""

    fetched: float = 0.0  # seconds of a position for each pass
    computed: float = 0.0  # the same for each unit of the pass's size
    sure: float = field(default=0.0, init=False)  # the share of the fit that counts: 0 to 1
    own: tuple[float, float] = field(default=(0.0, 0.0), init=False)  # what that share comes to
    usual: float = field(default=USUAL, init=False)  # deviations from the fit, of the seconds
    count: float = field(default=0.0, init=False)  # deviations, newer ones counting more
    each: float = field(default=0.0, init=False)  # seconds of one more unit of size, nearby
    # faded sums: of squares and products of the two prices' regressors and the size, and of these with the seconds
    _sums: tuple[float, ...] = field(default=(0.0,) * 10, init=False)
    _spread: float = field(default=0.0, init=False)  # of squared differences of contexts

    def of(self, size: float) -> float:
        """Return the seconds that one more cached position costs a pass of this size."""
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
        """Count how a pass differs from others of about its ``size``, which took so many ``seconds``.

        It is ``longer`` by so many units, has so many more positions before it (``farther``), and took so much more time (``slower``).
        ``weight`` is what a difference from a mean of few is worth.
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
        """Work the prices out anew; ``growing``: the share of a usual pass's seconds that grows with its size.

        What cannot be told apart, because all passes had about one size, is divided as the seconds are.
        """
        if self.count < LEAST or not self._spread:
            return
        aa, ab, bb, ac, bc, cc, ay, by, cy, yy = self._sums
        if cc:  # what sizes within a range explain is taken out first
            aa, ab, bb = aa - ac * ac / cc, ab - ac * bc / cc, bb - bc * bc / cc
            ay, by, yy = ay - ac * cy / cc, by - bc * cy / cc, yy - cy * cy / cc
        growing = min(max(growing, SHARE), 1 - SHARE)
        assumed = ASSUMED * LONGER * LONGER / self._spread  # ridge, by the spread of contexts
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
        """Let the prices of a related kind of question stand for what this one's own measurements leave open."""
        doubt = 1 - self.sure
        self.fetched = self.own[0] + doubt * fetched
        self.computed = self.own[1] + doubt * computed


def _nonnegative(aa: float, ab: float, bb: float, ay: float, by: float) -> tuple[float, float]:
    """Return the least-squares solution of two unknowns, neither below 0."""
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
    """Return recorded prices; raise ValueError if they are none."""
    if not (0 <= fetched < math.inf and 0 <= computed < math.inf):
        raise ValueError(f"no prices of a position: {fetched}, {computed}")
    return ContextPrice(fetched, computed)
