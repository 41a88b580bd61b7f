"""The choice of how much to draft at a time: a fixed length, or by goodput.

Goodput is SmartSpec's measure (Liu et al. 2024, arXiv:2406.14066): expected progress per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from semspec.decoding.trim import depths
from semspec.types import Round


@dataclass(slots=True)
class Steady:
    """Drafts the same length every time."""

    length: int
    cap: int

    def units(self) -> int:
        """Return how many units to draft; 0: the target writes the next one without a draft."""
        return self.length

    def unit_cap(self) -> int:
        """Return the longest unit of the next draft."""
        return self.cap

    def observe(self, done: Round) -> None:
        """Do nothing: the length is fixed."""


@dataclass(slots=True)
class Average:
    """An exponential average that starts with its first value."""

    keep: float = 0.8
    value: float | None = None

    def add(self, x: float) -> None:
        self.value = x if self.value is None else self.keep * self.value + (1 - self.keep) * x


@dataclass(slots=True)
class Adaptive:
    """Drafts the length with the best expected goodput, judging by the costs of the rounds so far.

    With acceptance a of a unit, drafting cost d per unit, verification v0 + v1 * n, and cost w of a unit
    that the target writes, a draft of n units advances by
        E(n) = a + a^2 + ... + a^n + (1 - a^n)
    units (after a rejection the target writes one) in time
        T(n) = n * d + v0 + v1 * n + (1 - a^n) * w,
    and n = 0 advances by 1 in w. A token rule itself writes one after whatever it keeps, so that there
    E(n) = a + ... + a^n + 1, T(n) = n * d + v0 + v1 * n, and n = 0 advances by 1 in v0. The best E/T is
    taken, and every ``explore``-th round after n = 0 drafts all the same, so that the estimates stay
    current. Costs are wall time: two runs need not choose alike.
    """

    longest: int
    cap: int
    explore: int = 8
    accepted: float = 4.0  # pseudo-counts: the initial estimate of acceptance is .8
    judged: float = 5.0
    draft: Average = field(default_factory=Average)  # seconds per drafted unit
    verify: Average = field(default_factory=Average)  # seconds per verification
    write: Average = field(default_factory=Average)  # seconds per unit that the target wrote
    lengths: list[int] = field(default_factory=list)  # tokens of accepted units
    idle: int = 0  # consecutive rounds without a draft
    writes: bool = False  # the rule itself writes what follows, as token rules do

    def units(self) -> int:
        best = self._best()
        return 1 if best == 0 and self.idle >= self.explore else best

    def _best(self) -> int:
        d, v, w = self.draft.value, self.verify.value, self.write.value
        if d is None or v is None or (w is None and not self.writes):
            return 1
        a = self.accepted / self.judged
        alone, afterwards = (v, 0.0) if self.writes or w is None else (w, w)
        best, best_rate = 0, 1 / alone
        for n in range(1, self.longest + 1):
            kept = sum(a**i for i in range(1, n + 1))
            missed = 1 - a**n
            # reading one more unit in the same pass costs about a tenth of the pass
            gained = kept + (1 if self.writes else missed)
            rate = gained / (n * d + v * (1 + 0.1 * (n - 1)) + missed * afterwards)
            if rate > best_rate:
                best, best_rate = n, rate
        return best

    def unit_cap(self) -> int:
        """Return twice the 95 % quantile of accepted units, to stop drafts that run on."""
        if len(self.lengths) < 20:
            return self.cap
        ordered = sorted(self.lengths)
        return min(self.cap, max(8, 2 * ordered[int(0.95 * (len(ordered) - 1))]))

    def observe(self, done: Round) -> None:
        # a tree is as long as it is deep: the cost of its width is part of a level's cost
        units = len(done.ends) if done.parents is None else max(depths(done.parents), default=0)
        self.idle = 0 if units else self.idle + 1
        self.writes |= bool(done.written) and not done.handed_over
        if units:
            judged = min(units, done.units_kept + 1)
            self.accepted = 0.95 * self.accepted + done.units_kept
            self.judged = 0.95 * self.judged + judged
            self.draft.add(done.draft_seconds / units)
            self.verify.add(done.seconds.get("verify", 0.0) / (1 + 0.1 * (units - 1)))
            self.lengths += [b - a for a, b in pairwise([0, *done.ends[: done.units_kept]])]
            del self.lengths[:-200]
        if done.handed_ends:
            self.write.add(done.seconds.get("write", 0.0) / len(done.handed_ends))


Pace = Steady | Adaptive
