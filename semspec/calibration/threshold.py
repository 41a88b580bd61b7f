"""Choose a threshold of the free score from unlabelled steps, so that drafted steps are held to the target's own.

It takes two samples from one run's contexts: the lowest log-probability of each step that the target wrote, and of each
that was drafted. A target seldom writes a step below a low quantile of its own steps, so a drafted step below it is
unlike what the target writes, and nothing is lost by writing it anew. This needs no labels and promises no truth: a wrong
step that the target finds likely is accepted, as the target might have written it itself. ``semspec.calibration.risk``
has the guarantee.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

OWN_REJECTED = 0.02  # of the target's own steps, the share that the threshold may reject (docs/measurements/thresholds.md)
DELTA = 0.05
FEWEST = 40  # steps of each kind; with fewer the quantile is a guess


@dataclass(frozen=True, slots=True)
class Chosen:
    """A threshold and what it would have done to the steps that it was chosen from."""

    threshold: float
    own_steps: int
    drafted_steps: int
    own_rejected: float  # share of the target's own steps below it
    accepted: float  # share of the drafted steps that it accepts
    doubtful: float  # estimated share of these that are less likely than what the target writes
    temperature: float = 1.0  # that all scores are at

    @property
    def at_most(self) -> float:
        """Return the most that ``doubtful`` may be, given the number of steps."""
        counts = self.own_steps, self.drafted_steps
        return min(1.0, self.doubtful + uncertainty(*counts))


def enough(own: Sequence[float], drafted: Sequence[float]) -> bool:
    """Return whether there are enough steps to choose from."""
    return min(len(own), len(drafted)) >= FEWEST


def choose(
    own: Sequence[float],
    drafted: Sequence[float],
    share: float = OWN_REJECTED,
    temperature: float = 1.0,
) -> Chosen:
    """Return the highest threshold that rejects at most ``share`` of the target's own steps."""
    assert own and drafted
    ordered = sorted(own)
    threshold = ordered[int(share * len(ordered))]
    return Chosen(
        threshold,
        len(own),
        len(drafted),
        _below(own, threshold),
        1 - _below(drafted, threshold),
        doubtful(own, drafted, threshold),
        temperature,
    )


def doubtful(own: Sequence[float], drafted: Sequence[float], threshold: float) -> float:
    """Estimate which share of the accepted drafted steps is less likely than the target's own accepted ones.

    This is the largest excess of drafted steps below any score, in shares of the accepted steps of either kind (the
    one-sided Kolmogorov-Smirnov distance): that share would have to be replaced for both kinds to look alike.
    """
    ours, theirs = (sorted(x for x in scores if x >= threshold) for scores in (own, drafted))
    if not (ours and theirs):
        return 0.0
    excess = (
        bisect_right(theirs, score) / len(theirs) - bisect_right(ours, score) / len(ours)
        for score in theirs
    )
    return max(0.0, max(excess))


def uncertainty(own_steps: int, drafted_steps: int) -> float:
    """Return how far ``doubtful`` may be off by chance, with 95 % confidence, for independent steps."""
    return math.sqrt(math.log(1 / DELTA) / 2 * (1 / own_steps + 1 / drafted_steps))


def _below(scores: Sequence[float], threshold: float) -> float:
    return sum(x < threshold for x in scores) / len(scores)
