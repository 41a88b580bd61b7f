"""Certify a threshold on a score, so that accepted steps are seldom ones that the target would not write.

The guarantee: P(semantic probability of a step < least | the step is accepted) <= risk, with confidence
1 - delta over the draw of the calibration set. Learn-then-test (Angelopoulos et al. 2021) with
fixed-sequence testing: thresholds are tried from the strictest to the most lenient, each is certified
by an exact binomial bound (Clopper-Pearson) on the steps it accepts, and the first that fails ends the
sequence, so no correction for the number of thresholds is needed. A sequence that begins early ends at
the first wrong step, and one that begins late may skip the good thresholds; so there are three, each at a
third of delta. Their beginnings are fixed before any label is looked at. One step of each problem is
used, at random: steps of one problem are not independent, and its first ones differ from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from semspec.deferred import special, torch
from semspec.errors import UserError

ALLOWED = (0, 2, 8)  # a sequence begins where a bound could hold with this many wrong steps


@dataclass(frozen=True, slots=True)
class Certified:
    """A certified threshold and the figures behind it."""

    threshold: float
    steps: int  # of the calibration set that it accepts
    wrong: int  # of these, below ``least``
    bound: float  # upper confidence bound of the risk


def upper_bound(wrong: int, steps: int, delta: float) -> float:
    """Return the Clopper-Pearson bound: at this rate ``wrong`` or fewer have probability delta."""
    # what scipy.stats.beta.ppf calls, without its checks
    return 1.0 if wrong >= steps else float(special.betaincinv(wrong + 1, steps - wrong, 1 - delta))


def certify(
    scores: Sequence[float],
    semantic: Sequence[float],
    groups: Sequence[int],
    *,
    risk: float,
    least: float,
    delta: float = 0.05,
) -> Certified:
    """Return the most lenient certified threshold; raise UserError if there is none."""
    given = list(zip(scores, semantic, groups, strict=True))
    rows: dict[int, tuple[float, float]] = {}
    # one step of each group, the first in a fixed random order
    for at in torch.randperm(len(given), generator=torch.Generator().manual_seed(0)).tolist():
        score, true, group = given[at]
        rows.setdefault(group, (score, true))
    ordered = sorted(rows.values(), reverse=True)
    wrong_of = list(accumulate(true < least for _, true in ordered))
    counts = [n for n in range(1, len(ordered)) if ordered[n - 1][0] > ordered[n][0]]
    counts.append(len(ordered))  # tied scores are accepted together
    found: Certified | None = None
    best = 1.0
    share = delta / len(ALLOWED)
    for allowed in ALLOWED:
        for count in counts:
            if count < _first_test(len(ordered), risk, share, allowed):
                continue
            wrong = wrong_of[count - 1]
            bound = upper_bound(wrong, count, share)
            best = min(best, bound)
            if bound > risk:
                break
            if found is None or count > found.steps:
                found = Certified(ordered[count - 1][0], count, wrong, bound)
    if found is None:
        raise UserError(
            f"accept.risk={risk:g} cannot be certified from {len(ordered)} calibration"
            f" steps (the lowest bound is {best:.3f}): give a higher risk, or calibrate on"
            " more problems"
        )
    return found


@lru_cache
def _first_test(steps: int, risk: float, delta: float, allowed: int) -> int:
    """Return the fewest accepted steps for which a bound could hold with ``allowed`` wrong ones."""
    counts = range(1, steps + 1)
    return next((n for n in counts if upper_bound(allowed, n, delta) <= risk), steps + 1)
