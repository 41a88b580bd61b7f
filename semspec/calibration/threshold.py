"""Choose a threshold of the free score from unlabelled steps, so that drafted steps are held to the target's own.

Two samples of one run's contexts: the lowest log-probability of a step that the target wrote, and of one that was
drafted. A target seldom writes a step below its own low quantile, so a drafted step below it is unlike what it
writes, and nothing is lost by writing it anew. This asks no truth of any step, and promises none: what a target that
errs finds likely is accepted, as it would have written it itself. ``semspec.calibration.risk`` has the guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OWN_REJECTED = 0.02  # of the target's own steps, the share that the threshold may reject
LIKE = 0.2  # of the own steps at least so many are asked how many drafted ones are like them
FEWEST = 40  # steps of each kind; from fewer the quantile is a guess


@dataclass(frozen=True, slots=True)
class Chosen:
    """A threshold and what it would have done to the steps that it was chosen from."""

    threshold: float
    own_steps: int
    drafted_steps: int
    own_rejected: float  # share of the target's own steps below it
    accepted: float  # share of the drafted steps that it accepts
    doubtful: float  # estimated share of these that are unlike what the target writes


def enough(own: Sequence[float], drafted: Sequence[float]) -> bool:
    """Say if there are steps enough to choose from."""
    return min(len(own), len(drafted)) >= FEWEST


def choose(own: Sequence[float], drafted: Sequence[float], share: float = OWN_REJECTED) -> Chosen:
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
    )


def doubtful(own: Sequence[float], drafted: Sequence[float], threshold: float) -> float:
    """Estimate which share of the accepted drafted steps is unlike the target's own.

    Drafted steps are a mixture of steps like the target's and of others. At most so many are like them that no stricter
    threshold accepts fewer than it should of such; the rest of what is accepted is doubtful. A draft
    that words its steps otherwise than the target has doubtful steps that are right.
    """
    accepted = 1 - _below(drafted, threshold)
    if not accepted:
        return 0.0
    kept = 1 - _below(own, threshold)
    stricter = [x for x in own if x >= threshold and _below(own, x) <= 1 - LIKE]
    like = min((1 - _below(drafted, x)) / (1 - _below(own, x)) for x in stricter)
    return min(1.0, max(0.0, 1 - like * kept / accepted))


def _below(scores: Sequence[float], threshold: float) -> float:
    return sum(x < threshold for x in scores) / len(scores)
