"""A threshold for a stopper, so that a stop seldom changes a right answer into a wrong one.

The guarantee: P(the natural answer is right and the one behind a stop is wrong) <= risk, over problems like those
of the calibration, with confidence 1 - delta over their draw. Learn-then-test (Angelopoulos et al. 2021) as in
``calibration.risk``, with the loss of Conformal Thinking: thresholds are tried from the strictest to the most
lenient, each is certified by an exact binomial bound (Clopper-Pearson) over all problems, and the first that fails ends the
sequence, so no correction for their number is due. The grid is fixed, whatever the scores are, and the loss need not grow
along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from semspec import registry
from semspec.calibration.risk import upper_bound
from semspec.errors import UserError

# strict to lenient: even steps of the log odds
LEVELS = tuple(1 / (1 + math.exp(-tenths / 10)) for tenths in range(160, -70, -1))
# options of a stopper that do not change its score, or what is answered
APART = (
    "threshold",
    "risk",
    "confidence",
    "calibration",
    "allow_mismatch",
    "audit",
    "answer_tokens",
)


def certifiable(stop: Any) -> bool:
    """Return True if a stopper has a score whose threshold can be certified."""
    return any(one.name == "risk" for one in fields(stop))


def described_stop(stop: Any) -> dict[str, Any]:
    """Describe a stopper: a threshold holds for the score of these options alone."""
    names = [one.name for one in fields(stop) if one.name not in APART]
    return {
        "name": registry.name_of(stop),
        "options": {name: stop.described(name) for name in names},
    }


@dataclass(frozen=True, slots=True)
class Trial:
    """What a stopper said at the end of a step, and what would have been answered there."""

    thought: int  # tokens of the thinking so far
    score: float
    right: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """A problem whose thinking was watched to its natural end."""

    trials: Sequence[Trial]
    right: bool  # the natural answer
    thought: int  # tokens of the whole thinking

    def stopped(self, threshold: float) -> tuple[bool, int]:
        """Return whether a stop at this threshold does harm, and the tokens of the thinking that are left."""
        for trial in self.trials:
            if trial.score >= threshold:
                return self.right and not trial.right, trial.thought
        return False, self.thought


@dataclass(frozen=True, slots=True)
class CertifiedStop:
    """A certified threshold and the figures behind it."""

    threshold: float
    problems: int
    harmed: int
    bound: float  # upper confidence bound of the risk
    saved: float  # share of the thinking, on the calibration's problems


def certify(problems: Sequence[Watched], *, risk: float, delta: float = 0.05) -> CertifiedStop:
    """Return the most lenient certified threshold; raise UserError if there is none."""
    whole = sum(one.thought for one in problems)
    found: CertifiedStop | None = None
    lowest = 1.0
    for threshold in LEVELS:
        ends = [one.stopped(threshold) for one in problems]
        harmed = sum(harm for harm, _ in ends)
        bound = upper_bound(harmed, len(problems), delta) if problems else 1.0
        lowest = min(lowest, bound)
        if bound > risk:
            break
        saved = 1 - sum(tokens for _, tokens in ends) / whole if whole else 0.0
        found = CertifiedStop(threshold, len(problems), harmed, bound, saved)
    if found is None:
        raise UserError(
            f"stop.risk={risk:g} cannot be certified from {len(problems)} problems (the lowest bound is"
            f" {lowest:.3f}): ask for more risk, or calibrate on more problems"
        )
    return found
