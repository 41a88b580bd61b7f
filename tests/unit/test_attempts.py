"""Several attempts at each problem: their ids, and intervals that allow for their correlation."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from semspec.config import recorded
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.report.comparison import compare
from semspec.report.page import run_page
from semspec.report.runs import read_run
from semspec.report.terminal import notes
from semspec.results import paired
from semspec.results.attempts import Groups, attempted, counted, mean_of, worth
from semspec.results.figures import problem_line
from semspec.results.metrics import (
    Z95,
    flipped,
    mcnemar,
    ratio_interval,
    share_interval,
    summarise,
    wilson,
)
from semspec.results.records import Line
from semspec.results.schema import sound
from semspec.results.significance import by_problem_apart, paired_by_problem, paired_difference
from tests.support.pair import configuration
from tests.support.runs import CONFIG, make_run
from tests.unit.test_metrics import PLAIN, solve

Draw = Callable[[random.Random], float]
DIFFICULTIES: dict[str, Draw] = {  # how likely a problem's answer is right
    "easy or hard": lambda rng: rng.betavariate(0.3, 0.2),
    "between": lambda rng: rng.betavariate(2, 2),
    "mostly easy": lambda rng: rng.betavariate(3, 0.5),
    "all alike": lambda rng: 0.6,
}


def a_line(problem: int, attempt: int, right: bool, alone: bool = True, **changed: Any) -> Line:
    of = f"p{problem}"
    name = f"{of}#{attempt + 1}" if attempt else of
    plain = solve(**{**PLAIN, "correct": alone})
    own = solve(correct=right, **changed)
    return problem_line(name, own, plain, attempt_of=of if attempt else "")


def test_attempts_are_problems_of_their_own_after_the_first_ones() -> None:
    problems = [BenchmarkProblem("a", "A?", tenant="t"), BenchmarkProblem("b", "B?", "1")]
    assert attempted(problems, 1) == problems
    more = attempted(problems, 3)
    assert more[:2] == problems
    assert [p.id for p in more[2:]] == ["a#2", "b#2", "a#3", "b#3"]
    assert [p.attempt_of for p in more[2:]] == ["a", "b"] * 2
    assert [p.question for p in more] == ["A?", "B?"] * 3
    # nothing is copied from another attempt at the same problem
    assert [p.tenant for p in more] == ["t", "", "t#2", "#2", "t#3", "#3"]


def test_more_than_one_attempt_at_temperature_zero_is_refused_in_a_line() -> None:
    configuration("attempts=1", "temperature=0")
    with pytest.raises(UserError, match=r"attempts=2 with temperature=0: .*temperature=0\.6"):
        configuration("attempts=2", "temperature=0")
    with pytest.raises(UserError, match="attempts=0: give at least 1"):
        configuration("attempts=0")


def test_one_attempt_is_recorded_as_before_there_were_more() -> None:
    one, two = configuration(), configuration("attempts=2")
    assert "attempts" not in recorded(one, {"attempts": 1, "seed": 0})
    assert recorded(two, {"attempts": 2, "seed": 0})["attempts"] == 2
    assert "attempt_of" not in problem_line("a", solve(), None)


def test_one_answer_a_problem_is_worth_one() -> None:
    rng = random.Random(1)
    for problems in (1, 2, 7, 40):
        single = [[float(rng.random() < 0.6)] for _ in range(problems)]
        right = int(sum(map(sum, single)))
        assert worth(single, Z95) == problems
        assert share_interval(single) == wilson(right, problems)
    assert share_interval([]) is None


def test_attempts_that_always_agree_tell_no_more_than_one() -> None:
    rng = random.Random(2)
    single = [[float(rng.random() < 0.7)] for _ in range(30)]
    for attempts in (2, 8):
        same = [group * attempts for group in single]
        assert worth(same, Z95) == 30
        assert share_interval(same) == pytest.approx(share_interval(single))
    every = [[1.0] * 4] * 30  # all right: that they agree tells nothing about how alike they are
    assert share_interval(every) == wilson(30, 30)
    assert share_interval([[1.0, 0.0]] * 1) == wilson(0.5, 1)


def test_the_worth_is_the_design_effect_of_a_slow_reference() -> None:
    """Of the definition: n over 1 + (k - 1) times the correlation of two attempts, over all pairs; then Student's t."""
    rng = random.Random(3)
    for attempts in (2, 3, 8):
        groups = []
        for _ in range(40):
            chance = rng.betavariate(1, 1)
            groups.append([float(rng.random() < chance) for _ in range(attempts)])
        middle = numpy.mean(groups)
        pairs = [(x - middle) * (y - middle) for g in groups for x, y in itertools.permutations(g, 2)]  # fmt: skip
        alike = numpy.mean(pairs) / numpy.var(groups)
        n = 40 * attempts
        quantiles = stats.t.ppf(0.975, [n - 1, 39])
        expected = n / (1 + (attempts - 1) * alike) * (quantiles[0] / quantiles[1]) ** 2
        assert worth(groups, Z95) == pytest.approx(min(max(expected, 40), n), rel=1e-4)


def naive(groups: Groups) -> Any:
    """What treats attempts as independent."""
    return wilson(sum(map(sum, groups)), sum(map(len, groups)))


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_intervals_hold_the_truth_and_those_of_independent_answers_do_not(difficulty: str) -> None:
    rng, runs, problems, attempts = random.Random(difficulty), 400, 30, 8
    draw = DIFFICULTIES[difficulty]
    truth = math.fsum(draw(rng) for _ in range(100_000)) / 100_000
    held = {share_interval: 0, naive: 0}
    narrower = 0
    for _ in range(runs):
        chances = [draw(rng) for _ in range(problems)]
        groups = [[float(rng.random() < c) for _ in range(attempts)] for c in chances]
        for interval in held:
            low, high = interval(groups)
            held[interval] += low <= truth <= high
        low, high = share_interval(groups) or (0, 1)
        one = wilson(round(mean_of(groups) * problems), problems)
        assert one is not None
        narrower += high - low < one[1] - one[0]
    # 95 % are 380
    assert 360 <= held[share_interval] <= 396
    assert narrower >= 0.9 * runs  # and several attempts tell more than one
    if difficulty == "all alike":
        assert held[naive] >= 360
    else:
        assert held[naive] < 350


def test_differences_hold_the_truth_and_the_test_errs_as_often_as_it_says() -> None:
    rng, runs = random.Random(5), 300
    held = naively = wrong = wrongly = 0
    for _ in range(runs):
        groups = []
        for _ in range(30):  # who is better depends on the problem, and is the same on average
            a, b = rng.betavariate(0.5, 0.5), rng.betavariate(0.5, 0.5)
            groups.append([(rng.random() < a, rng.random() < b) for _ in range(4)])
        value, (low, high) = paired_by_problem(groups)
        assert low <= value <= high
        held += low <= 0 <= high
        flat = [pair for g in groups for pair in g]
        counts = [flat.count(k) for k in ((True, True), (True, False), (False, True), (False, False))]  # fmt: skip
        low, high = paired_difference(*counts)
        naively += low <= 0 <= high
        wrong += flipped([sum(b - a for a, b in g) for g in groups]) < 0.05
        wrongly += mcnemar(counts[1], counts[2]) < 0.05
    assert held >= 0.92 * runs and naively < 0.85 * runs
    assert wrong <= 0.09 * runs and wrongly > 0.15 * runs


def test_differences_of_one_answer_a_problem_are_what_they_were() -> None:
    rng = random.Random(6)
    single = [[(rng.random() < 0.8, rng.random() < 0.7)] for _ in range(50)]
    flat = [pair for (pair,) in single]
    counts = [flat.count(k) for k in ((True, True), (True, False), (False, True), (False, False))]
    value, interval = paired_by_problem(single)
    assert (value, interval) == ((counts[2] - counts[1]) / 50, paired_difference(*counts))
    twice = paired_by_problem([group * 2 for group in single])
    assert twice[0] == pytest.approx(value) and twice[1] == pytest.approx(interval)
    for lost, won in ((0, 0), (1, 0), (3, 9), (7, 7), (40, 60)):
        assert flipped([-1] * lost + [1] * won + [0, 0]) == mcnemar(lost, won)


def test_the_permutation_test_counts_all_ways_to_swap() -> None:
    rng = random.Random(7)
    for _ in range(20):
        differences = [rng.randint(-3, 4) for _ in range(9)]
        seen, ways = abs(sum(differences)), list(itertools.product((1, -1), repeat=9))
        sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in ways]
        assert flipped(differences) == sum(one >= seen for one in sums) / len(ways)


def test_runs_of_different_problems_differ_by_problems_too() -> None:
    rng = random.Random(8)

    def side(chances: Sequence[float], attempts: int) -> list[list[bool]]:
        return [[rng.random() < c for _ in range(attempts)] for c in chances]

    a, b = side([0.9] * 40, 4), side([0.3] * 30, 4)
    value, (low, high), p = by_problem_apart(a, b)
    assert value < -0.4 and low <= value <= high < 0 and p < 1e-6
    same = [[True] * 4] * 10 + [[False] * 4] * 10
    fewer = [[True] * 4] * 7 + [[False] * 4] * 13
    value, (low, high), p = by_problem_apart(same, fewer)
    assert value == pytest.approx(-0.15) and low < 0 < high and p > 0.2


def test_figures_are_means_over_problems_and_intervals_are_over_them() -> None:
    rights = [[True, True, False], [False, False, False], [True, True, True], [True, False, False]]
    alone = [[True, False, False], [False, True, False], [True, True, True], [True, True, True]]
    lines = [
        a_line(p, a, rights[p][a], alone[p][a], seconds=1.0 + p + a / 4)
        for a in range(3)
        for p in range(4)
    ]
    found = json.loads(json.dumps(summarise(lines)))
    assert (found["problems"], found["answers"], found["graded"]) == (4, 12, 12)
    assert found["pass_at_1"] == pytest.approx((2 / 3 + 0 + 1 + 1 / 3) / 4)
    assert found["plain"]["answers"] == 12 and found["plain"]["pass_at_1"] == pytest.approx(8 / 12)
    assert found["pass_at_1_interval"] == list(share_interval([[*map(float, g)] for g in rights]))  # type: ignore[arg-type]
    walls = [(18.0, 3 * (1.0 + p) + 0.75) for p in range(4)]
    assert found["speedup"] == pytest.approx(72 / sum(own for _, own in walls))
    assert found["speedup_interval"] == pytest.approx(ratio_interval(walls))
    assert (found["only_plain_correct"], found["only_speculative_correct"]) == (3, 1)
    assert found["pass_at_1_p"] == flipped([1, -1, 0, -2])
    about = {"provenance": None, "concurrency": 1}
    assert sound(found | about)
    # an unfinished second attempt weighs a problem no more than the others
    begun = summarise(lines[:5])
    assert begun["answers"] == 5 and begun["pass_at_1"] == pytest.approx((1 + 0 + 1 + 1) / 4)
    assert "answers" not in summarise(lines[:4])
    assert counted(found) == "4 problems x 3 attempts"
    assert counted(begun) == "4 problems, 5 answers"
    assert counted(summarise(lines[:1])) == "1 problem"
    assert "4 problems x 3 attempts: pass@1 is the mean over problems" in notes(found)[0]


def test_rows_of_arms_are_over_problems() -> None:
    lines = [a_line(p, a, (p + a) % 3 > 0, p % 2 > 0) for a in range(4) for p in range(10)]
    own = {line["id"]: line for line in lines}
    solved = {paired.PLAIN: {i: line["plain"] for i, line in own.items()}, "own": own}
    alone, row = paired.rows(solved, paired.PLAIN)
    whole = summarise(lines)
    for name in ("problems", "answers", "pass_at_1", "pass_at_1_interval", "pass_at_1_p", "speedup", "speedup_interval"):  # fmt: skip
        assert row[name] == pytest.approx(whole[name]), name
    assert row["gain"] == pytest.approx(whole["pass_at_1"] - whole["plain"]["pass_at_1"])
    assert alone["answers"] == 40 and alone["gain"] == 0
    single = {i: line for i, line in own.items() if "#" not in i}
    (row,) = paired.rows({"own": single}, "own")
    assert row["problems"] == 10 and "answers" not in row


def test_a_longer_text_is_no_slower_token() -> None:
    """Drawn texts differ in length: an arm that writes twice as much in twice the time is as fast."""
    lines = [a_line(p, 0, True, tokens=200, seconds=12.0) for p in range(6)]  # plain: 100 in 6 s
    solved = {
        paired.PLAIN: {x["id"]: x["plain"] for x in lines},
        "own": {x["id"]: x for x in lines},
    }
    alone, row = paired.rows(solved, paired.PLAIN)
    assert row["speedup"] == pytest.approx(0.5)
    assert row["speedup_a_token"] == pytest.approx(1.0) == alone["speedup_a_token"]
    assert row["speedup_a_token_interval"] == pytest.approx([1.0, 1.0])
    assert row["ms_a_token"] == pytest.approx(60.0)
    empty = [a_line(p, 0, True, tokens=0) for p in range(2)]
    lacking = {
        paired.PLAIN: {x["id"]: x["plain"] for x in empty},
        "own": {x["id"]: x for x in empty},
    }
    assert paired.rows(lacking, paired.PLAIN)[1]["ms_a_token"] is None


def test_reports_and_comparisons_are_of_problems(tmp_path: Path) -> None:
    def named(number: int) -> str:
        problem, attempt = number % 10, number // 10
        return f"p{problem}#{attempt + 1}" if attempt else f"p{problem}"

    def made(name: str, right: Callable[[int], bool]) -> Path:
        run = make_run(
            tmp_path / name, 40, name=named, correct=lambda i: (True, right(i % 10)), config={**CONFIG, "attempts": 4}
        )  # fmt: skip
        file = run / "problems.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if "#" in line["id"]:
                line["attempt_of"] = line["id"].partition("#")[0]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "result.json").unlink()
        return run

    # the same two problems are lost in all four attempts: one loss each, not four
    a, b = made("a", lambda p: True), made("b", lambda p: p > 1)
    page = run_page(read_run(a))
    assert "10 problems x 4 attempts" in page and "40 answers are done" in page
    found = compare(a, b, margin=0.02)
    assert found.paired and found.problems == 10 and (found.lost, found.won) == (8, 0)
    assert found.quality.value == pytest.approx(-0.2)
    assert found.quality.p == mcnemar(2, 0) and found.quality.verdict == "unknown"
    single = paired_difference(8, 2, 0, 0)
    assert found.quality.interval == pytest.approx(single)
    assert "permutation test by problem, 8 lost and 0 won of 40 answers" in found.quality.why
    assert all(one.n == 10 for one in found.equivalence)
    assert (found.speed.interval is None) == (found.speed.verdict == "unknown" and not found.speed.value)  # fmt: skip
