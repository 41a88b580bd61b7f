"""The lower threshold, at which problems are given up, against the paper's formula and against fresh draws."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import (
    LEVELS,
    Trial,
    Watched,
    certify,
    described_stop,
    outcome,
)
from semspec.cli.calibrate_stop import measured, run
from semspec.decoding.hopeless import HEIGHTS, HOPELESS, IN_A_ROW, SHIFTS, SOLVED, Floor, Judge
from semspec.errors import UserError
from semspec.models.location import EXAMPLE
from semspec.protocols import Run
from semspec.report.terminal import result_rows
from semspec.results import metrics
from semspec.stops.eat import Eat
from semspec.storage.digest import difference
from semspec.types import Sampling

BUDGET = 400
STEPS = 16


def drawn(rng: random.Random) -> Watched:
    """A problem that is solved early, late or never; a score that stays low is of one that is mostly never solved."""
    kind = rng.choices(["early", "late", "never"], [5, 2, 3])[0]
    right_from = {"early": rng.randint(2, 8), "late": rng.randint(9, 14), "never": STEPS}[kind]
    trials = []
    for step in range(STEPS):
        right = step >= right_from
        near = 3.0 if right else -1.0 - 2.0 * (kind == "never" or rng.random() < 0.3)
        near = -near if rng.random() < 0.03 else near
        trials.append(Trial(25 * step + 25, 1 / (1 + math.exp(-rng.gauss(near, 1.5))), right))
    return Watched(trials, kind != "never", 25 * STEPS)


def exit_by_the_paper(
    thoughts: Sequence[int], scores: Sequence[float], upper: float, slope: float, shift: float
) -> int | None:
    """Where Conformal Thinking's sigmoid threshold closes the thinking, with our three trials in a row.

    lambda(t) = upper * sigma(slope * (t - shift)), for all trials at once and from the last one back.
    """
    threshold = [upper / (1 + math.exp(-slope * (t - shift))) for t in thoughts]
    below = [score < least for score, least in zip(scores, threshold, strict=True)]
    ends = [at for at in range(len(below)) if at >= 2 and below[at] and below[at - 1] and below[at - 2]]  # fmt: skip
    return min(ends, default=None)


SCORES = st.lists(st.floats(0, 1), max_size=12)


@given(
    scores=SCORES,
    height=st.sampled_from(HEIGHTS),
    shift=st.sampled_from(SHIFTS),
    threshold=st.sampled_from([0.3, 0.9, 2.0]),
)
def test_the_rule_is_the_formula_of_the_paper(
    scores: list[float], height: float, shift: float, threshold: float
) -> None:
    thoughts = [30 * number + 30 for number in range(len(scores))]
    trials = [Trial(t, s, False) for t, s in zip(thoughts, scores, strict=True)]
    given_up = exit_by_the_paper(thoughts, scores, height, 10 / BUDGET, shift * BUDGET)
    solved = next((at for at, score in enumerate(scores) if score >= threshold), None)
    ends = [at for at in (given_up, solved) if at is not None]
    expected = thoughts[min(ends)] if ends else 1000
    floor = Floor.of(height, shift, BUDGET)
    harm, tokens = Watched(trials, True, 1000).stopped(threshold, floor)
    assert tokens == expected
    # the paper counts every natural answer that was right as lost, whatever stands behind the stop
    assert harm == bool(ends)
    judge = Judge(threshold, floor)
    why = [judge.closes(t, s) for t, s in zip(thoughts, scores, strict=True)]
    if ends:
        assert why[min(ends)] == (SOLVED if solved == min(ends) else HOPELESS)
        assert not any(why[: min(ends)])


@given(scores=SCORES, shift=st.sampled_from(SHIFTS))
def test_a_higher_threshold_closes_whatever_a_lower_one_closes(
    scores: list[float], shift: float
) -> None:
    problem = Watched([Trial(30 * n + 30, s, False) for n, s in enumerate(scores)], True, 1000)
    ends = [problem.stopped(math.inf, Floor.of(height, shift, BUDGET))[1] for height in HEIGHTS]
    assert ends == sorted(ends, reverse=True) and ends[0] == 1000, "height 0 gives nobody up"


def test_both_certified_risks_hold_over_draws_of_the_calibration() -> None:
    rng = random.Random(3)
    fresh = [drawn(rng) for _ in range(1500)]
    risk, share, delta, times = 0.2, 0.5, 0.2, 50
    over = {"solved": 0, "hopeless": 0, "both": 0}
    heights, saved, before = set(), [], []
    for _ in range(times):
        problems = [drawn(rng) for _ in range(120)]
        found = certify(problems, risk=risk, delta=delta, hopeless=share, budget=BUDGET)
        assert found.floor is not None and found.bound <= risk
        assert (found.harmed, found.saved) == outcome(problems, found.threshold, found.floor)
        heights.add(found.floor.height)
        harmed, less = outcome(fresh, found.threshold, found.floor)
        upper, alone = outcome(fresh, found.threshold, None)
        lower, _ = outcome(fresh, math.inf, found.floor)
        assert harmed <= upper + lower, "together they harm more than each alone"
        over["both"] += harmed > risk * len(fresh)
        over["solved"] += upper > risk * (1 - share) * len(fresh)
        over["hopeless"] += lower > risk * share * len(fresh)
        saved.append(less)
        before.append(alone)
    assert len(heights) > 3, "the lower threshold does not follow the data"
    assert sum(saved) > 1.1 * sum(before) > 0, "giving up saves nothing"
    for name, allowed in {"both": delta, "solved": delta / 2, "hopeless": delta / 2}.items():
        # delta of the draws, and four standard deviations
        most = times * allowed + 4 * math.sqrt(times * allowed * (1 - allowed))
        assert over[name] <= most, (name, over)


def test_without_a_bound_the_risk_would_not_hold() -> None:
    """The test above can fail: thresholds chosen by the bare share of harmed problems exceed the risk too often."""
    rng = random.Random(4)
    fresh = [drawn(rng) for _ in range(1500)]
    times, over = 50, 0
    for _ in range(times):
        problems = [drawn(rng) for _ in range(120)]
        floors = [Floor.of(height, shift, BUDGET) for shift in SHIFTS for height in HEIGHTS[::4]]
        told = [(outcome(problems, math.inf, floor), floor) for floor in floors]
        _, floor = max(((saved, n) for n, ((harmed, saved), _) in enumerate(told) if harmed <= 12))
        over += outcome(fresh, math.inf, floors[floor])[0] > 0.1 * len(fresh)
    assert over > times * 0.1 + 4 * math.sqrt(times * 0.1 * 0.9)


def test_where_giving_up_does_harm_at_once_nobody_is_given_up(tmp_path: Path) -> None:
    low = [Trial(25 * n + 25, 0.0, right=n == 15) for n in range(16)]  # solved late, and never sure
    problems = [Watched(low, right=True, thought=BUDGET)] * 200
    found = certify(problems, risk=0.2, hopeless=0.5, budget=BUDGET)
    assert found.floor is None and (found.harmed, found.saved) == (0, 0.0)
    place = calibration(tmp_path / "one", problems, max_new_tokens=BUDGET)
    made = bound(Eat(risk=0.2, calibration=place, hopeless=0.5))
    assert made.judge().floor is None and "hopeless below no score" in made.origin()


def test_too_few_problems_and_a_share_that_leaves_nothing_are_refused() -> None:
    rng = random.Random(6)
    problems = [drawn(rng) for _ in range(100)]
    for risk, share, told in (
        (0.08, 0.5, r"stop\.hopeless=0\.5 of stop\.risk=0\.08 cannot be certified from 100 problems"),
        (0.2, 0.9, r"0\.1 of stop\.risk=0\.2 cannot be certified .* or leave stop\.hopeless= out"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=told) as error:
            certify(problems, risk=risk, hopeless=share, budget=BUDGET)
        assert "\n" not in str(error.value)


HOW = {"split": "paragraph", "rule": "logprob", "temperature": 0.6, "draft": "d"}


def calibration(folder: Path, problems: Sequence[Watched], **how: Any) -> str:
    StopCalibration.of(problems, EXAMPLE, described_stop(Eat()), HOW | how, {}).save(folder)
    return str(folder)


def bound(stop: Eat, **changes: Any) -> Eat:
    run = Run(
        models={"target": EXAMPLE}, split="paragraph", sampling=Sampling(0.6), drafts="d", rule="logprob",
        max_new_tokens=BUDGET,
    )  # fmt: skip
    return stop.bind(replace(run, **changes))


def test_a_run_takes_both_thresholds_from_its_calibration(tmp_path: Path) -> None:
    rng = random.Random(7)
    problems = [drawn(rng) for _ in range(200)]
    place = calibration(tmp_path / "one", problems, max_new_tokens=BUDGET)
    asked = Eat(risk=0.2, calibration=place, hopeless=0.5)
    made = bound(asked)
    found = certify(problems, risk=0.2, hopeless=0.5, budget=BUDGET)
    assert (made.level, made.certified) == (found.threshold, found)
    assert made.judge().floor == found.floor is not None
    assert "hopeless below a score that rises to 0." in made.origin()
    alone = bound(replace(asked, hopeless=0.0))
    assert alone.level == certify(problems, risk=0.2).threshold < made.level
    assert alone.judge().floor is None and "hopeless" not in alone.origin()
    with pytest.raises(UserError, match=f"with max_new_tokens={BUDGET}: run python -m semspec.cal"):
        bound(asked, max_new_tokens=2 * BUDGET)
    bound(replace(asked, allow_mismatch=True), max_new_tokens=2 * BUDGET)
    bound(replace(asked, hopeless=0.0), max_new_tokens=2 * BUDGET)


def test_a_calibration_of_before_serves_and_one_without_its_budget_gives_nobody_up(
    tmp_path: Path,
) -> None:
    rng = random.Random(8)
    problems = [drawn(rng) for _ in range(200)]
    assert "hopeless" not in described_stop(Eat())["options"], "older calibrations would not fit"
    place = calibration(tmp_path / "old", problems)
    assert StopCalibration.load(place).problems == problems
    assert bound(Eat(risk=0.2, calibration=place)).level in LEVELS
    with pytest.raises(UserError, match="does not record its max_new_tokens") as error:
        bound(Eat(risk=0.2, calibration=place, hopeless=0.5))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hopeless": 0.5}, r"stop\.hopeless=0\.5 is a share of stop\.risk=: give stop\.risk="),
        ({"hopeless": 0.5, "risk": 0.1}, "run python -m semspec.calibrate_stop stop=eat"),
        ({"hopeless": 1.0, "risk": 0.1, "calibration": "x"}, r"stop\.hopeless=1\.0: give a number above 0"),
        ({"hopeless": -1.0, "risk": 0.1, "calibration": "x"}, r"stop\.hopeless=-1\.0: give a number"),
    ],
)  # fmt: skip
def test_a_share_without_a_calibration_is_refused_in_a_line(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told) as error:
        Eat(**options)
    assert "\n" not in str(error.value)


def test_a_run_of_before_goes_on_without_the_option() -> None:
    before = {"stop": {"threshold": 0.95}}
    assert difference(before, {"stop": {"threshold": 0.95, "hopeless": 0.0}}) is None
    told = difference(before, {"stop": {"threshold": 0.95, "hopeless": 0.5}})
    assert told is not None and "stop.hopeless was 0.0, is 0.5" in told


def test_a_score_has_to_stay_low() -> None:
    floor = Floor.of(0.5, 0.25, BUDGET)
    judge = Judge(0.9, floor)
    low = [judge.closes(300, 0.1) for _ in range(IN_A_ROW - 1)]
    assert low == [""] * (IN_A_ROW - 1) and judge.closes(300, 0.6) == ""
    again = [judge.closes(300, 0.1) for _ in range(IN_A_ROW)]
    assert again == [*low, HOPELESS] and judge.closes(300, 0.95) == SOLVED


def test_a_report_counts_stops_by_reason() -> None:
    details = {"stopped": 1, "stop_trials": 3, "thinking_tokens": 50}
    kinds = [{"stopped_as_hopeless": 1}, {"stopped_as_hopeless": 1}, {"stopped_by_limit": 1}, {}]
    solve = dict.fromkeys((*metrics.SUMMED, *metrics.LATER), 1) | {"finish": "eos", "correct": True}
    none = {"stopped_as_hopeless": 0, "stopped_by_limit": 0}
    lines = [
        {**solve, "id": str(number), "plain": None, "details": details | none | kind}
        for number, kind in enumerate(kinds)
    ]
    result = metrics.summarise(lines)
    stop = result["stop"]
    assert (stop["stopped"], stop["hopeless"], stop["by_limit"]) == (4, 2, 1)
    told = {name: cells[-1] for name, *cells in result_rows(result)}["thinking closed"]
    assert told == "4 of 4, 1 as solved, 2 as hopeless, 1 by the limit"


def test_the_command_measures_both_thresholds_on_fresh_problems(tmp_path: Path) -> None:
    rng = random.Random(9)
    problems, fresh = ([drawn(rng) for _ in range(300)] for _ in range(2))
    made = StopCalibration.load(calibration(tmp_path / "one", problems, max_new_tokens=BUDGET))
    with_it, without = (
        {row[0]: row[1:] for row in measured(made, fresh, share)} for share in (0.4, 0.0)
    )
    found = certify(problems, risk=0.1, hopeless=0.4, budget=BUDGET)
    assert found.floor is not None and found.floor.height > 0
    assert with_it[0.1] == (found.threshold, *outcome(fresh, found.threshold, found.floor))
    assert without[0.1][0] < with_it[0.1][0] and 0.05 in without
    with pytest.raises(UserError, match="hopeless= works only with measure=") as error:
        run(["stop=eat", "hopeless=0.4", "adaptive=false", f"folder={tmp_path / 'work'}"])
    assert "\n" not in str(error.value)
