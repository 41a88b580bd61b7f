"""Certify thresholds for a stopper, so that a stop seldom changes a right answer into a wrong one.

The guarantee: P(the natural answer is right and the one after a stop is wrong) <= risk, over problems like those
of the calibration, with confidence 1 - delta over their draw. Learn-then-test (Angelopoulos et al. 2021) as in
``calibration.risk``, with the loss of Conformal Thinking: thresholds are tried from the strictest to the most
lenient, each is certified by an exact binomial bound (Clopper-Pearson) over all problems, and the first that fails ends
the sequence, so no correction for their number is needed. The grid is fixed, whatever the scores are, and the loss need
not grow along it. ``semspec.decoding.hopeless`` has the lower threshold, which shares the risk with this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from semspec import registry
from semspec.calibration.risk import upper_bound
from semspec.decoding.hopeless import HEIGHTS, SHIFTS, Floor, Judge
from semspec.errors import UserError

# strict to lenient: even steps of the log odds
LEVELS = tuple(1 / (1 + math.exp(-tenths / 10)) for tenths in range(160, -70, -1))
# options of a stopper that do not change its score, or what is answered
APART = (
    "threshold",
    "risk",
    "confidence",
    "calibration",
    "hopeless",
    "allow_mismatch",
    "audit",
    "answer_tokens",
)


def certifiable(stop: Any) -> bool:
    """Return True if a stopper has a score whose threshold can be certified."""
    return any(one.name == "risk" for one in fields(stop))


def described_stop(stop: Any) -> dict[str, Any]:
    """Return the name and the options that a stopper's score depends on: a threshold holds only for these."""
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

    def stopped(self, threshold: float, floor: Floor | None = None) -> tuple[bool, int]:
        """Return whether a stop by these thresholds does harm, and how many tokens of thinking it keeps."""
        judge = Judge(threshold, floor)
        for trial in self.trials:
            if judge.closes(trial.thought, trial.score):
                return self.right and not trial.right, trial.thought
        return False, self.thought


@dataclass(frozen=True, slots=True)
class CertifiedStop:
    """Certified thresholds and the figures behind them."""

    threshold: float
    problems: int
    harmed: int
    bound: float  # upper confidence bound of the risk
    saved: float  # share of the thinking, on the calibration's problems
    floor: Floor | None = None  # None: no problem is given up as hopeless


def certify(
    problems: Sequence[Watched],
    *,
    risk: float,
    delta: float = 0.05,
    hopeless: float = 0.0,
    budget: int = 0,
) -> CertifiedStop:
    """Return the most lenient certified thresholds; raise UserError if there are none.

    ``hopeless`` is the share of the risk that may be spent on giving up problems; ``budget`` is that of their thinking,
    in tokens. Each threshold is certified on its own, at half of delta. Together they do no more harm than the sum of
    both: a problem that both would stop is stopped by the first of them, as that one alone would do.
    """
    share = delta / 2 if hopeless else delta
    way = ", or leave stop.hopeless= out" if hopeless else ""
    upper = _certified(problems, risk * (1 - hopeless), share, ((level, None) for level in LEVELS))
    if isinstance(upper, float):
        asked = f"{1 - hopeless:g} of stop.risk={risk:g}" if hopeless else f"stop.risk={risk:g}"
        raise _uncertified(problems, asked, upper, way)
    if not hopeless:
        return upper
    lower = _lower(problems, risk * hopeless, share, budget)
    if isinstance(lower, float):
        asked = f"stop.hopeless={hopeless:g} of stop.risk={risk:g}"
        raise _uncertified(problems, asked, lower, way)
    floor = lower.floor if lower.floor and lower.floor.height else None
    harmed, saved = outcome(problems, upper.threshold, floor)
    bound = min(1.0, upper.bound + lower.bound)
    return CertifiedStop(upper.threshold, len(problems), harmed, bound, saved, floor)


def _lower(
    problems: Sequence[Watched], risk: float, delta: float, budget: int
) -> CertifiedStop | float:
    """Return the certified lower threshold that saves most, or the lowest bound if none is certified.

    There is one sequence for each place where the threshold rises, each at its share of delta, so that everything they
    certify holds at once.
    """
    found = [
        _certified(
            problems,
            risk,
            delta / len(SHIFTS),
            ((math.inf, Floor.of(height, shift, budget)) for height in HEIGHTS),
        )
        for shift in SHIFTS
    ]
    held = [one for one in found if isinstance(one, CertifiedStop)]
    if held:
        return max(held, key=lambda one: one.saved)
    return min(one for one in found if isinstance(one, float))


def _certified(
    problems: Sequence[Watched],
    risk: float,
    delta: float,
    sequence: Iterable[tuple[float, Floor | None]],
) -> CertifiedStop | float:
    """Return the last thresholds before the first that fail; if none pass, the bound of the first."""
    found: CertifiedStop | None = None
    for threshold, floor in sequence:
        harmed, saved = outcome(problems, threshold, floor)
        bound = upper_bound(harmed, len(problems), delta) if problems else 1.0
        if bound > risk:
            return found or bound
        found = CertifiedStop(threshold, len(problems), harmed, bound, saved, floor)
    assert found is not None, "a sequence has at least one threshold"
    return found


def outcome(
    problems: Sequence[Watched], threshold: float, floor: Floor | None
) -> tuple[int, float]:
    """Return how many problems these thresholds harm, and the share of the thinking that they save."""
    ends = [one.stopped(threshold, floor) for one in problems]
    whole = sum(one.thought for one in problems)
    saved = 1 - sum(tokens for _, tokens in ends) / whole if whole else 0.0
    return sum(harm for harm, _ in ends), saved


def _uncertified(problems: Sequence[Watched], asked: str, bound: float, way: str) -> UserError:
    return UserError(
        f"{asked} cannot be certified from {len(problems)} problems (the lowest bound is"
        f" {bound:.3f}): give a higher risk, or calibrate on more problems{way}"
    )
