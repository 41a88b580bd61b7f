"""The figures of a run against values by hand and against scipy and numpy."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped,unused-ignore]

from semspec.results.metrics import mean, quantile, ratio, ratio_interval, summarise, wilson
from semspec.results.records import Solve, problem_line
from semspec.types import Outcome, Round


def solve(**changed: Any) -> Solve:
    values: dict[str, Any] = {
        "text": "",
        "correct": True,
        "finish": "eos",
        "seconds": 2.0,
        "tokens": 100,
        "rounds": 5,
        "drafts": 4,
        "drafted_units": 8,
        "drafted_tokens": 120,
        "kept_units": 6,
        "kept_tokens": 80,
        "written_tokens": 4,
        "handed_tokens": 16,
        "gained_tokens": 84,
        "draft_passes": 8,
        "target_passes": 6,
        "draft_seconds": 0.5,
        "verify_seconds": 0.25,
        "write_seconds": 1.0,
    }
    values |= changed
    return Solve(**{"wall": values["seconds"], **values})


PLAIN: dict[str, Any] = {
    "seconds": 6.0,
    "drafts": 0,
    "drafted_units": 0,
    "drafted_tokens": 0,
    "kept_units": 0,
    "kept_tokens": 0,
    "written_tokens": 0,
    "handed_tokens": 100,
    "gained_tokens": 0,
    "draft_passes": 0,
    "draft_seconds": 0.0,
    "verify_seconds": 0.0,
    "write_seconds": 5.4,
}


def test_the_mean_acceptance_rate_is_of_lengths_and_of_problems() -> None:
    """A tree of five nodes is three long; problems count alike, and one without drafts does not."""
    chain = Round(drafted=[1, 2, 3, 4], kept=[1], ends=[1, 2, 3, 4])
    tree = Round(drafted=[1, 2, 3, 4, 5], parents=[-1, -1, 0, 2, 0], kept=[1, 3, 4], ends=[1, 2, 3, 4, 5])  # fmt: skip
    none = Round(written=[7])
    solves = [Solve.from_outcome(Outcome([], "eos", rounds), "") for rounds in ([chain, tree, none], [chain], [none])]  # fmt: skip
    assert [s.drafted_length for s in solves] == [7, 4, 0]
    figures = summarise(problem_line(str(i), s, None) for i, s in enumerate(solves))
    assert figures["mean_acceptance_rate"] == pytest.approx((4 / 7 + 1 / 4) / 2)
    assert figures["acceptance_rate_tokens"] == pytest.approx(5 / 13)
    older = [{k: v for k, v in problem_line("x", solves[0], None).items() if k != "drafted_length"}]
    assert summarise(older)["mean_acceptance_rate"] is None


def test_wilson_gives_the_values_worked_by_hand() -> None:
    # 8 of 10, z = 1.96: (0.8 + 0.19208 -+ 1.96 sqrt(0.016 + 0.009604)) / 1.38416
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    assert wilson(0, 0) is None


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts: tuple[int, int]) -> None:
    theirs = stats.binomtest(*counts).proportion_ci(0.95, method="wilson")
    assert wilson(*counts) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([0, 0.1, 0.5, 0.9, 1])
)
def test_quantile_and_mean_are_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(numpy.quantile(values, q), abs=1e-6)
    assert mean(values) == pytest.approx(numpy.mean(values), abs=1e-6)


def test_figures_of_nothing_are_none() -> None:
    assert (quantile([], 0.5), mean([]), ratio(1, 0), ratio_interval([])) == (None,) * 4
    assert ratio_interval([(1.0, 2.0)]) is None  # one problem
    assert ratio_interval([(1.0, 0.0)] * 3) is None


def test_bootstrap_is_scipys() -> None:
    rng = random.Random(3)
    pairs = [(rng.uniform(5, 15), rng.uniform(2, 6)) for _ in range(40)]
    first, second = numpy.array(pairs).T
    theirs = stats.bootstrap(
        (first, second),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    ours = ratio_interval(pairs, resamples=4000)
    assert ours == pytest.approx((theirs.low, theirs.high), rel=0.01)
    assert ratio_interval(pairs) == ratio_interval(pairs) != ratio_interval(pairs, seed=1)


def test_bootstrap_is_paired() -> None:
    """Problems differ a hundredfold in length, but each is exactly twice as fast."""
    pairs = [(2.0 * n, 1.0 * n) for n in (1, 10, 100)]
    assert ratio_interval(pairs) == pytest.approx((2.0, 2.0))


def test_bootstrap_intervals_cover_the_truth() -> None:
    rng = random.Random(1)
    hits = 0
    for seed in range(100):
        pairs = [(3 * b * rng.uniform(0.5, 1.5), b) for b in (rng.uniform(1, 2) for _ in range(40))]
        low, high = ratio_interval(pairs, seed=seed, resamples=300) or (0, 0)
        hits += low <= 3 <= high
    assert 88 <= hits <= 100


def test_a_run_has_the_figures_counted_by_hand() -> None:
    lines = [
        problem_line("a", solve(details={"steps": 4, "steps_true": 3}), solve(**PLAIN)),
        problem_line(
            "b",
            solve(correct=False, seconds=4.0, tokens=50, finish="budget", details={"steps": 6}),
            solve(**{**PLAIN, "seconds": 12.0}),
        ),
        problem_line("c", solve(correct=None), solve(**{**PLAIN, "correct": None})),
    ]
    r = summarise(lines)
    assert (r["problems"], r["graded"], r["ungraded"], r["cut_off"]) == (3, 2, 1, 1)
    assert r["pass_at_1"] == 0.5 and r["pass_at_1_interval"] == wilson(1, 2)
    assert r["tokens_per_second"] == pytest.approx(250 / 8)
    assert r["latency"] == pytest.approx(8 / 3)
    assert (r["latency_median"], r["latency_p90"]) == (2.0, pytest.approx(3.6))
    assert r["tokens"] == pytest.approx(250 / 3)
    assert r["acceptance_rate"] == 0.75
    assert r["acceptance_rate_tokens"] == pytest.approx(2 / 3)
    assert r["accept_length"] == 21.0
    assert r["target_share"] == 0.2
    assert (r["target_passes"], r["draft_passes"]) == (18, 24)
    assert r["time"] == {
        "draft": pytest.approx(1.5 / 8),
        "verify": pytest.approx(0.75 / 8),
        "write": pytest.approx(3 / 8),
        "overhead": pytest.approx(2.75 / 8),
    }
    assert r["details"] == {"steps": 10, "steps_true": 3, "steps_true_share": 0.3}
    assert r["speedup"] == pytest.approx(24 / 8)
    assert r["speedup_median"] == pytest.approx(3.0)
    assert r["speedup_per_token"] == pytest.approx((250 / 8) / (300 / 24))
    low, high = r["speedup_interval"]
    assert low == high == pytest.approx(3.0)
    assert (r["only_plain_correct"], r["only_speculative_correct"]) == (1, 0)
    plain = r["plain"]
    assert plain["pass_at_1"] == 1.0 and plain["target_share"] == 1.0
    assert plain["acceptance_rate"] is None and plain["accept_length"] is None
    assert plain["tokens_per_second"] == pytest.approx(300 / 24)


def test_only_problems_with_both_modes_are_compared() -> None:
    lines = [
        problem_line("a", solve(), solve(**PLAIN)),
        problem_line("b", solve(seconds=100.0), None),
    ]
    r = summarise(lines)
    assert r["speedup"] == pytest.approx(3.0) and r["speedup_interval"] is None
    assert r["problems"] == 2 and r["plain"]["problems"] == 1
    alone = summarise([problem_line("a", solve(), None)])
    assert alone["plain"] is None and alone["speedup"] is None
    assert alone["only_plain_correct"] is None


def test_an_empty_run_is_json() -> None:
    r = summarise([])
    assert r["problems"] == 0 and r["pass_at_1"] is None and r["time"] is None
    json.dumps(r, allow_nan=False)


def test_parts_never_exceed_the_whole() -> None:
    """In a batch every problem is booked the whole pass."""
    r = summarise([problem_line("a", solve(seconds=1.0, write_seconds=3.25), None)])
    assert r["time"]["overhead"] == 0.0
    assert math.fsum(r["time"].values()) == pytest.approx(1.0)


def test_stored_lines_give_the_same() -> None:
    lines = [problem_line("a", solve(details={"rate": 0.5}), solve(**PLAIN))]
    assert summarise(json.loads(json.dumps(lines))) == summarise(lines)
    assert summarise(lines)["details"] == {"rate": 0.5}
