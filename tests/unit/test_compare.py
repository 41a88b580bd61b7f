"""Comparing two runs: known handmade cases, and everything that must not be compared."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.cli.compare import main, sentences
from semspec.errors import UserError
from semspec.report.comparison import compare, speed_ratio
from semspec.results.metrics import mcnemar
from semspec.results.paired import recovered
from semspec.results.significance import difference, holm, paired_difference, permutation
from tests.support.runs import CONFIG, PROVENANCE, make_run

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(name: str, problems: int = 12, **how: Any) -> Path:
        return make_run(tmp_path / name, problems, **how)

    return made


def steady(plain: float, own: float) -> Callable[[int], tuple[float, float]]:
    return lambda i: (plain * (1 + 0.02 * (i % 3)), own * (1 + 0.03 * (i % 2)))


# --- the tests' own arithmetic, against published figures ---


def test_newcombes_intervals_are_the_published_ones() -> None:
    # Newcombe 1998, Statistics in Medicine 17, 2635-2650, table III: 36, 12, 2, 0
    assert paired_difference(36, 2, 12, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    # and 873-890, table II: 56/70 against 48/80
    assert difference(48, 80, 56, 70) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_exact_tests_give_the_published_values() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 6) == mcnemar(6, 0) == pytest.approx(2 / 64)
    assert mcnemar(3, 9) == pytest.approx(2 * (1 + 12 + 66 + 220) / 2**12)
    assert permutation(3, 4, 1, 4) == pytest.approx(34 / 70)  # Fisher's tea
    assert permutation(10, 10, 0, 10) == pytest.approx(2 / 184756)
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]  # fmt: skip


@given(*[st.integers(0, 40)] * 4)
def test_the_interval_contains_its_value_and_inverts_with_the_runs(
    a: int, b: int, c: int, d: int
) -> None:
    n = a + b + c + d
    if n == 0:
        return
    low, high = paired_difference(a, b, c, d)
    assert -1 <= low <= (c - b) / n <= high <= 1
    assert paired_difference(a, c, b, d) == pytest.approx((-high, -low))


def test_what_an_arm_wins_back_lies_between_the_drafts_and_the_target() -> None:
    def arm(right: Sequence[bool]) -> dict[str, dict[str, bool]]:
        return {str(number): {"correct": one} for number, one in enumerate(right)}

    target, drafts = arm([True] * 8 + [False] * 2), arm([True] * 2 + [False] * 8)
    assert recovered(target, drafts, target)["recovered"] == 1
    assert recovered(drafts, drafts, target)["recovered"] == 0
    half = recovered(arm([True] * 5 + [False] * 5), drafts, target)
    low, high = half["recovered_interval"]
    assert half["recovered"] == 0.5 and 0 <= low < 0.5 < high <= 1
    assert recovered(drafts, target, target)["recovered"] is None  # nothing lies between


def test_the_interval_of_speed_covers_the_truth() -> None:
    """Of 95 % intervals, about 95 in 100 hold the ratio that the data were drawn with."""
    rng, hits = random.Random(3), 0
    for trial in range(200):

        def walls(gain: float) -> list[tuple[float, float]]:
            return [(2 + rng.random(), (2 + rng.random()) / gain) for _ in range(24)]

        _, interval = speed_ratio(walls(2.0), walls(3.0), False, seed=trial, resamples=400)
        assert interval is not None
        hits += interval[0] <= 1.5 <= interval[1]
    assert 178 <= hits <= 199


# --- verdicts ---


def test_a_faster_run_is_found_faster_and_not_better(make: Make) -> None:
    a, b = make("a", seconds=steady(2.0, 1.0)), make("b", seconds=steady(2.0, 0.5))
    found = compare(a, b)
    assert found.paired and found.problems == 12
    assert found.speed.verdict == "higher" and found.speed.value == pytest.approx(2.0)
    # nobody changed sides, but a dozen problems cannot show that nobody would
    assert found.quality.verdict == "unknown" and found.quality.interval is not None
    assert found.quality.interval[0] < -0.1 and found.quality.p == 1.0
    told = "\n".join(sentences(found))
    assert "Speed: B is faster: 2.00 times as fast as A (95 %: 2.00 to 2.00" in told
    assert "Quality: the data cannot decide." in told
    assert compare(b, a).speed.verdict == "lower"


def test_speed_is_against_the_target_of_the_same_run(make: Make) -> None:
    """B ran on a machine that was three times as slow: its seconds are worse, its speed-up is the same."""
    a = make("a", seconds=lambda i: (2.0 + i % 4, 1.0 + 0.1 * (i * 7 % 3)))
    b = make("b", seconds=lambda i: (6.0 + 3 * (i % 4), 3.0 + 0.3 * (i * 5 % 3)))
    found = compare(a, b)
    assert found.speed.verdict == "unknown"
    assert any("times as long in B" in note for note in found.notes)


def test_lost_problems_make_quality_lower(make: Make) -> None:
    a = make("a", 20, correct=lambda i: (True, True))
    b = make("b", 20, correct=lambda i: (True, i >= 8))
    found = compare(a, b)
    assert (found.lost, found.won) == (8, 0)
    assert found.quality.verdict == "lower" and found.quality.p == pytest.approx(2 / 256)
    assert found.quality.value == pytest.approx(-0.4)
    assert compare(b, a).quality.verdict == "higher"
    assert "B is worse. pass@1 of A 1.000, of B 0.600: -40.0 points" in "\n".join(sentences(found))


def test_a_wider_margin_makes_quality_the_same(make: Make) -> None:
    a, b = make("a", 60), make("b", 60)
    assert compare(a, b, margin=0.02).quality.verdict == "unknown"
    assert compare(a, b, margin=0.10).quality.verdict == "same"


def test_runs_of_different_problems_are_compared_as_two_samples(make: Make) -> None:
    other = {"benchmark": {**CONFIG["benchmark"], "seed": 7}}
    a = make("a", 12, correct=lambda i: (True, True))
    b = make("b", 12, correct=lambda i: (True, i > 8), config=other, question="Another one?")
    found = compare(a, b)
    assert not found.paired and found.lost is None
    assert found.quality.p == pytest.approx(permutation(12, 12, 3, 12))
    assert found.quality.verdict == "lower"
    assert any("different problems" in note for note in found.notes)


def test_only_problems_that_both_solved_are_compared(make: Make) -> None:
    found = compare(make("a", 12), make("b", 9, finished=False))
    assert found.paired and found.problems == 9
    assert any("B is not finished" in note for note in found.notes)
    assert any("the 9 problems that both" in note for note in found.notes)


def test_few_problems_leave_speed_unknown(make: Make) -> None:
    a, b = make("a", 5, seconds=steady(2.0, 1.0)), make("b", 5, seconds=steady(2.0, 0.1))
    found = compare(a, b)
    assert found.speed.verdict == "unknown" and "at least 6" in found.speed.why


def test_ungraded_runs_have_no_comparison_of_quality(make: Make) -> None:
    found = compare(make("a", correct=lambda i: (None, None)), make("b"))
    assert found.quality.verdict == "not compared" and "graded" in found.quality.why


# --- what must not be compared ---


def changed(**options: Any) -> dict[str, Any]:
    return {name: {**CONFIG[name], **value} if isinstance(value, dict) else value for name, value in options.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (changed(model={"path": "owner/other"}), "different targets (model.path"),
        (changed(plugins={"engine": "toy"}), "different engines (plugins.engine hf and toy)"),
        (changed(engine={"dtype": "bfloat16"}), "different engines (engine.dtype"),
        (changed(plugins={"benchmark": "gsm8k"}), "different benchmarks (plugins.benchmark"),
        (changed(benchmark={"domains": ["weekdays"]}), "different benchmarks (benchmark.domains"),
    ],
)
def test_unlike_runs_are_refused(make: Make, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        compare(make("a", 3), make("b", 3, config=options))
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"plain": False}, "b did not run the target alone"),
        ({"config": {"concurrency": 4}}, "concurrency"),
        ({"config": changed(engine={"threads": 8})}, "engine.threads"),
    ],
)
def test_runs_set_up_differently_have_no_comparison_of_speed(
    make: Make, how: dict[str, Any], told: str
) -> None:
    found = compare(make("a"), make("b", **how))
    assert found.speed.verdict == "not compared" and told in found.speed.why
    assert found.quality.verdict == "unknown"  # quality is compared all the same


def test_runs_on_different_machines_have_no_comparison_of_speed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = make("a")
    monkeypatch.setitem(PROVENANCE["machine"], "gpus", ["A fast one"])
    found = compare(a, make("b"))
    assert found.speed.verdict == "not compared" and "A fast one" in found.speed.why


def test_threads_unknown_at_the_start_do_not_make_another_machine(make: Make) -> None:
    a, b = make("a"), make("b", finished=False)
    early = {**PROVENANCE, "machine": {**PROVENANCE["machine"], "threads": 2}}
    (b / "starts.jsonl").write_text(json.dumps(early) + "\n")
    assert compare(a, b).speed.verdict != "not compared"
    early["machine"]["cpu"] = "Another one"
    (b / "starts.jsonl").write_text(json.dumps(early) + "\n")
    found = compare(a, b)
    assert found.speed.verdict == "not compared" and "Another one" in found.speed.why


def test_different_temperatures_are_noted(make: Make) -> None:
    found = compare(make("a"), make("b", config={"temperature": 1.0}))
    assert any("temperature 0.6 and 1.0" in note for note in found.notes)


# --- the command ---


def test_the_command_prints_sentences_or_json(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = make("accept=logprob,t=1"), make("b", seconds=steady(2.0, 0.5))
    main([str(a), str(b)])
    assert "Speed: B is faster" in capsys.readouterr().out
    main([str(a), str(b), "json=true", "margin=5"])
    told = json.loads(capsys.readouterr().out)
    assert told["speed"]["verdict"] == "higher" and told["paired"] is True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give two folders"),
        (["{a}"], "give two folders"),
        (["{a}", "{a}"], "the same folder"),
        (["{a}", "{a}/none"], "holds no run"),
        (["{a}", "{a}", "margin=x"], "margin=x: give percentage points"),
        (["{a}", "{a}", "json=perhaps"], "json=perhaps: give true or false"),
    ],
)
def test_mistakes_end_in_one_line(
    make: Make, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    a = make("a", 2)
    with pytest.raises(SystemExit) as end:
        main([argument.format(a=a) for argument in arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
