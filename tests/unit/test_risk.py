"""Thresholds with a guarantee: exact bounds, and the guarantee itself over many calibrations."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binom

from semspec.calibration.risk import certify, upper_bound
from semspec.errors import UserError


def test_the_bound_is_clopper_and_pearsons() -> None:
    for wrong, steps in ((0, 50), (3, 100), (17, 40)):
        bound = upper_bound(wrong, steps, 0.05)
        assert binom.cdf(wrong, steps, bound) == pytest.approx(0.05)
    assert upper_bound(5, 5, 0.05) == 1.0


def draw(rng: random.Random, count: int) -> list[tuple[float, float]]:
    """Scores, and truths that agree with them more or less: P(wrong | score s) = (1 - s)^2 / 2."""
    rows = []
    for _ in range(count):
        score = rng.random()
        rows.append((score, 0.0 if rng.random() < (1 - score) ** 2 / 2 else 1.0))
    return rows


def true_risk(threshold: float) -> float:
    """P(wrong | score >= t) of ``draw``: the mean of (1 - s)^2 / 2 over s in [t, 1]."""
    return (1 - threshold) ** 2 / 6


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.1])
def test_the_guarantee_holds_over_many_calibrations(risk: float) -> None:
    broken = trials = 0
    kept = []
    for seed in range(300):
        rng = random.Random(seed)
        rows = draw(rng, 2000)
        scores, truths = zip(*rows, strict=True)
        try:
            found = certify(scores, truths, range(2000), risk=risk, least=0.5, delta=0.1)
        except UserError:
            continue
        trials += 1
        broken += true_risk(found.threshold) > risk
        kept.append(1 - found.threshold)
    assert trials > 250
    # a rate of 0.1 is allowed; one in 10,000 runs would see more than this
    assert broken <= binom.ppf(1 - 1e-4, trials, 0.1)
    assert sum(kept) / len(kept) > 0.15, "certified, but hardly anything is accepted"


def test_a_threshold_without_a_bound_breaks_the_guarantee() -> None:
    """The plain empirical quantile, which looks alike, does not keep the risk: a sharp test."""
    broken = 0
    for seed in range(300):
        ordered = sorted(draw(random.Random(seed), 600), reverse=True)
        wrong, threshold = 0, 1.0
        for count, (score, truth) in enumerate(ordered, start=1):
            wrong += truth < 0.5
            if wrong / count <= 0.05:
                threshold = score
        broken += true_risk(threshold) > 0.05
    assert broken > binom.ppf(1 - 1e-4, 300, 0.1)


def test_one_step_a_problem_counts() -> None:
    scores, truths = [0.9] * 500, [1.0] * 500
    assert certify(scores, truths, range(500), risk=0.02, least=0.5).steps == 500
    with pytest.raises(UserError, match="calibrate on more problems"):
        certify(scores, truths, [0] * 500, risk=0.02, least=0.5)


def test_the_step_of_a_problem_is_drawn_from_all_of_its_steps() -> None:
    """Steps come in the order of their cuts: a guarantee from first steps is one for first steps."""
    truths = [float(step == 0) for _ in range(400) for step in range(4)]
    groups = [problem for problem in range(400) for _ in range(4)]
    with pytest.raises(UserError, match="calibrate on more problems"):
        certify([0.9] * 1600, truths, groups, risk=0.05, least=0.5)
    found = certify([0.9] * 1600, truths, groups, risk=0.85, least=0.5)
    assert found.steps == 400 and 260 < found.wrong < 340  # three of four
    again = certify([0.9] * 1600, truths, groups, risk=0.85, least=0.5)
    assert found == again


def test_the_order_of_problems_changes_nothing() -> None:
    rows = draw(random.Random(1), 1000)
    scores, truths = zip(*rows, strict=True)
    found = certify(scores, truths, range(1000), risk=0.05, least=0.5)
    scores, truths = zip(*reversed(rows), strict=True)
    assert certify(scores, truths, range(1000), risk=0.05, least=0.5) == found


@pytest.mark.parametrize(("risk", "steps"), [(0.05, 80), (0.02, 203), (0.1, 39)])
def test_the_three_sequences_share_delta(risk: float, steps: int) -> None:
    """So many right steps are the fewest: (1 - risk)^n <= delta / 3, not delta."""
    right = [1.0] * steps
    found = certify(right, right, range(steps), risk=risk, least=0.5, delta=0.05)
    assert found.bound == pytest.approx(1 - (0.05 / 3) ** (1 / steps))
    with pytest.raises(UserError, match="cannot be certified"):
        certify(right[1:], right[1:], range(steps - 1), risk=risk, least=0.5, delta=0.05)


def test_ties_are_accepted_together() -> None:
    scores = [0.9] * 300 + [0.5] * 200
    truths = [1.0] * 300 + [1.0] * 100 + [0.0] * 100
    found = certify(scores, truths, range(500), risk=0.05, least=0.5)
    assert found.threshold == 0.9 and found.steps == 300 and found.wrong == 0
