"""The measured threshold of ``accept=logprob``: its value for known steps, storing, reusing, refusals."""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts.threshold import MeasuredThreshold
from semspec.calibration.threshold import FEWEST, OWN_REJECTED, choose, doubtful, uncertainty
from semspec.errors import UserError
from semspec.protocols import Bench, Rule
from semspec.rules._watching import Place, Watching
from semspec.rules.logprob import STEPS, THRESHOLD, LogProb
from semspec.types import Read, Sampling, What

IDENTITY = {"files": ["sha256 0", "sha256 1"], "drafter": "lm", "split": "paragraph"}


def spread(low: float, high: float, steps: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(low, high) for _ in range(steps)]


def test_the_threshold_is_a_low_quantile_of_the_targets_own_steps() -> None:
    own = [-3 + 2 * n / 1000 for n in range(1000)]
    chosen = choose(own, spread(-3, -1, 700) + spread(-9, -5, 300))
    assert chosen.threshold == pytest.approx(-3 + 2 * OWN_REJECTED)
    assert chosen.own_rejected == pytest.approx(OWN_REJECTED)
    assert chosen.accepted == pytest.approx(0.7 * (1 - OWN_REJECTED), abs=0.02)
    assert chosen.doubtful < 0.05, "what it accepts is like the target's own"
    assert chosen.at_most == chosen.doubtful + uncertainty(1000, 1000) < 0.1


@pytest.mark.parametrize("unlike", [0.0, 0.25, 0.5, 0.9])
def test_steps_that_are_less_likely_than_the_targets_own_are_doubtful(unlike: float) -> None:
    own, count = spread(-3, -1, 4000), 4000
    drafted = spread(-3, -1, round((1 - unlike) * count), 1) + [-3.0] * round(unlike * count)
    assert doubtful(own, drafted, -3.0) == pytest.approx(unlike, abs=0.03)
    assert doubtful(own, drafted, -2.9) < 0.08, "none of these is accepted there"
    assert doubtful(own, drafted, 0.0) == 0.0, "nothing is accepted there"


def test_what_is_said_to_be_the_most_is_seldom_exceeded() -> None:
    few, missed = 64, 0
    for seed in range(200):
        own, drafted = spread(-3, -1, few, seed), spread(-3, -1, few, seed + 1000)
        missed += doubtful(own, drafted, -3.0) > uncertainty(few, few)
    assert missed <= 20, "5 % of 200 are 10"


def bench(own: Sequence[float], drafted: Sequence[float], **other: Any) -> tuple[Bench, list[str]]:
    """A pair whose steps are known; each solution has eight of them, and 100 tokens."""
    said: list[str] = []
    scored: list[float] = other.pop("scored", [])  # the temperatures that were asked for

    def solve(rule: Rule, budget: int) -> Generator[int, None, None]:
        assert isinstance(rule, Watching) and budget > 0
        scored.append(rule.read.temperature)
        steps = [Place("", 0, a, b, (), ()) for a, b in zip(own, drafted, strict=True)]
        for start in range(0, len(steps), 8):
            rule.places.extend(steps[start : start + 8])
            yield 100

    made = Bench(
        identity=IDENTITY,
        target="some",
        drafts=True,
        draft="other",
        sampling=Sampling(0.6),
        solve=solve,
        tell=said.append,
    )
    return replace(made, **other), said


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "thresholds"


OWN, DRAFTED = spread(-3, -1, 400), spread(-6, -1, 400)


def test_it_is_measured_once_and_taken_again(cache: Path) -> None:
    first, said = bench(OWN, DRAFTED)
    rule = LogProb().measure(first)
    assert rule.chosen is not None and rule.level == rule.chosen.threshold
    assert -3 <= rule.level < -2.9
    assert rule.chosen.own_steps == STEPS, "measuring ends when there are steps enough"
    (place,) = cache.iterdir()
    assert len(said) == 1 and "at most 16384 tokens" in said[0]
    assert "measured now on 256 steps" in rule.origin() and str(place) in rule.origin()
    assert MeasuredThreshold.load(place).config["data"] == {"steps": 256, "tokens": 3200}

    second, said = bench([], [])
    again = LogProb().measure(second)
    assert said == [] and again.chosen is not None
    assert again.level == pytest.approx(rule.level) and "measured before on 256" in again.origin()

    third, said = bench(OWN, DRAFTED, identity=IDENTITY | {"drafter": "suffix"})
    assert LogProb().measure(third).level == rule.level
    assert len(said) == 1 and len(list(cache.iterdir())) == 2, "another pair has its own"


@pytest.mark.parametrize(
    ("sampled", "given", "at"),
    [(0.6, "auto", 0.6), (0.0, "auto", 1.0), (1.0, "auto", 1.0), (1.3, "auto", 1.0), (0.6, 0.5, 0.5)],
)  # fmt: skip
def test_it_is_of_log_probabilities_at_the_temperature_that_is_sampled_at(
    cache: Path, sampled: float, given: Any, at: float
) -> None:
    scored: list[float] = []
    asked, _ = bench(OWN, DRAFTED, sampling=Sampling(sampled), scored=scored)
    rule = LogProb(score_temperature=given).measure(asked)
    assert scored == [at] and rule.chosen is not None and rule.chosen.temperature == at
    assert rule.read == Read(What.LOGPROBS, temperature=at)
    assert f"threshold {rule.level:.2f} at temperature {at:g}, measured now" in rule.origin()
    (place,) = cache.iterdir()
    assert MeasuredThreshold.load(place).config["score_temperature"] == at
    expected = {"threshold": rule.level} | ({"score_temperature": at} if at != 1 else {})
    assert rule.asked_inside() == expected
    # a run that goes on, and one that finds it in the cache, score alike
    for later in (
        bench([], [], recorded=rule.measured()),
        bench([], [], sampling=Sampling(sampled)),
    ):
        again = LogProb(score_temperature=given).measure(later[0])
        assert again.read == rule.read and again.level == pytest.approx(rule.level)
    # at another temperature it is another threshold
    other = 0.4 if given == "auto" else 0.7
    LogProb(score_temperature=other).measure(asked)
    assert scored == [at, other] and len(list(cache.iterdir())) == 2


def test_any_other_threshold_is_of_log_probabilities_at_temperature_1(cache: Path) -> None:
    few, _ = bench(OWN[: FEWEST - 1], DRAFTED[: FEWEST - 1])
    known, _ = bench(OWN, DRAFTED, target="embedded/tiny-target", draft="embedded/tiny-draft")
    for rule in (LogProb().measure(few), LogProb().measure(known), LogProb(threshold=-3)):
        assert rule.read == Read(What.LOGPROBS) and rule.asked_inside() == {"threshold": rule.level}
    by_hand = LogProb(threshold=-3, score_temperature=0.5)
    assert by_hand.read == Read(What.LOGPROBS, temperature=0.5)
    asked = LogProb(score_temperature=0.6).measure(known)
    assert asked.chosen is not None and asked.read.temperature == 0.6, "the constant is for 1"


def test_what_a_run_of_an_earlier_version_has_recorded_was_at_temperature_1(cache: Path) -> None:
    recorded = LogProb().measure(bench(OWN, DRAFTED)[0]).measured()
    older = {"why": recorded["why"], "chosen": {k: v for k, v in recorded["chosen"].items() if k != "temperature"}}  # fmt: skip
    rule = LogProb().measure(bench([], [], recorded=older)[0])
    assert rule.chosen is not None and rule.read == Read(What.LOGPROBS)


def test_a_damaged_one_is_measured_again(cache: Path) -> None:
    LogProb().measure(bench(OWN, DRAFTED)[0])
    (place,) = cache.iterdir()
    (place / "config.json").write_text("{}")
    again, said = bench(OWN, DRAFTED)
    assert "measured now" in LogProb().measure(again).origin()
    assert "measuring the threshold again" in said[0]
    assert MeasuredThreshold.load(place).chosen.own_steps == STEPS


def test_what_a_run_has_recorded_is_taken_before_anything_else(cache: Path) -> None:
    rule = LogProb().measure(bench(OWN, DRAFTED)[0])
    later, said = bench([], [], recorded=rule.measured(), identity={"other": 1})
    assert LogProb().measure(later).level == rule.level and not said
    assert LogProb().measure(later).origin() == rule.origin()


def test_where_it_cannot_be_measured_the_constant_stands_and_is_called_uncalibrated(
    cache: Path,
) -> None:
    few, _ = bench(OWN[: FEWEST - 1], DRAFTED[: FEWEST - 1])
    rule = LogProb().measure(few)
    assert rule.level == THRESHOLD and rule.chosen is None
    assert rule.origin() == (
        "threshold -4, uncalibrated for this pair: too few steps were drafted to measure one"
    )
    none = LogProb(warm_up=0).measure(bench(OWN, DRAFTED)[0])
    assert none.level == THRESHOLD and "uncalibrated" in none.origin()
    assert not cache.exists()


def test_another_temperature_takes_what_was_measured_for_the_servers_own(cache: Path) -> None:
    # a request's own temperature: nothing is measured while others wait
    server = LogProb().measure(bench(OWN, DRAFTED)[0])
    asked, _ = bench([], [], sampling=Sampling(0.9), identity={"other": 1}, standing=server)
    rule = LogProb().measure(asked)
    assert server.chosen is not None and rule.level == server.level != THRESHOLD
    assert rule.read == server.read and rule.origin() == server.origin()
    assert LogProb().measure(replace(asked, standing=LogProb())).level == THRESHOLD
    other = LogProb(score_temperature=0.3).measure(asked)  # what was measured is of another scale
    assert other.level == THRESHOLD and other.read.temperature == 1
    assert "whatever accept.score_temperature= says" in other.origin()


def test_a_requests_threshold_is_on_the_scale_of_the_servers_own(cache: Path) -> None:
    server = LogProb().measure(bench(OWN, DRAFTED)[0])
    asked, _ = bench([], [], identity={"other": 1}, standing=server)
    rule = LogProb(threshold=-5.5).measure(asked)
    assert rule.level == -5.5 and rule.read.temperature == server.read.temperature == 0.6
    assert LogProb(threshold=-5.5, score_temperature=0.3).measure(asked).read.temperature == 0.3
    constant = replace(asked, standing=LogProb(threshold=-4))
    assert LogProb(threshold=-5.5).measure(constant).read.temperature == 1


def test_its_budget_ends_it(cache: Path) -> None:
    rule = LogProb(warm_up=1000).measure(bench(OWN, DRAFTED)[0])
    assert rule.chosen is not None and rule.chosen.own_steps == 80, "ten solutions of 100 tokens"


def test_a_number_is_taken_and_called_uncalibrated(cache: Path) -> None:
    rule = LogProb(threshold=-3).measure(bench(OWN, DRAFTED)[0])
    assert rule.level == -3.0 and rule.measured() == {}
    assert rule.origin() == (
        "threshold -3, uncalibrated for this pair: accept.threshold= was set by hand"
    )
    assert not cache.exists()


def test_the_embedded_pair_keeps_its_constant(cache: Path) -> None:
    for draft in ("embedded/tiny-draft", None):
        known, said = bench(OWN, DRAFTED, target="embedded/tiny-target", draft=draft)
        rule = LogProb().measure(known)
        assert rule.level == THRESHOLD and not said and "uncalibrated" not in rule.origin()
    weaker, _ = bench(OWN, DRAFTED, target="embedded/tiny-target")
    assert LogProb().measure(weaker).chosen is not None, "with another draft it is another pair"
    alone, _ = bench(OWN, DRAFTED, drafts=False, identity={})
    assert LogProb().measure(alone).chosen is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"threshold": "low"}, "accept.threshold=low: give auto, or a negative number, such as -4"),
        ({"threshold": True}, "accept.threshold=True: give auto"),
        ({"threshold": 1}, "a log-probability cannot be above 0"),
        ({"score_temperature": 0}, "accept.score_temperature=0: give auto, or a number above 0"),
        ({"score_temperature": 1.2}, "accept.score_temperature=1.2: give auto"),
        ({"score_temperature": "low"}, "accept.score_temperature=low: give auto"),
        ({"score_temperature": float("nan")}, "accept.score_temperature=nan: give auto"),
        (
            {"calibration": "x", "risk": 0.1, "score_temperature": 0.6},
            "accept.calibration was measured at 1",
        ),
        ({"warm_up": -1}, "accept.warm_up=-1: give the most tokens to spend"),
    ],
)
def test_what_is_no_threshold_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        LogProb(**options)
