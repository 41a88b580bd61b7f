"""Stopping the thinking: reading it, closing it, and certifying a threshold."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import LEVELS, Trial, Watched, certify, described_stop
from semspec.decoding.stopping import Thought, closing_text, shortened
from semspec.errors import UserError
from semspec.models.location import EXAMPLE
from semspec.protocols import Closing, Run
from semspec.results import metrics
from semspec.results.schema import SCHEMA
from semspec.stops.answer import Braced, ForcedAnswer
from semspec.stops.budget import Budget
from semspec.stops.eat import Eat, entropy_of
from semspec.stops.none import NoStop
from semspec.storage.files import dumps
from semspec.storage.json_schema import check
from semspec.types import Round, Sampling

PIECES = ["<think>", "so", "</", "think>", "\n", "<th", "ink>", " x"]


@pytest.mark.parametrize(
    ("opened", "tokens", "thinking", "count"),
    [
        (True, [1, 7, 2, 3, 1], [1, 1, 1, 0, 0], 4),
        (False, [0, 1, 2, 3, 7], [1, 1, 1, 0, 0], 4),
        (False, [4, 5, 6, 1], [0, 0, 1, 1], 2),
        (False, [1, 0, 1], [0, 0, 0], 0),  # a tag within an answer opens nothing
    ],
)
def test_a_thinking_is_followed_from_tag_to_tag(
    opened: bool, tokens: list[int], thinking: list[int], count: int
) -> None:
    thought = Thought(PIECES.__getitem__, opened)
    found = []
    for token in tokens:
        thought.feed(token)
        found.append(int(thought.thinks))
    assert found == thinking
    assert thought.tokens == count


def test_the_thinking_is_closed_in_words() -> None:
    said = "My time for thinking is over, so I answer now with what I have."
    closing = NoStop().closing
    assert closing_text(closing, at_end=False) == f"\n\n{said}\n</think>\n\n"
    assert closing_text(closing, at_end=True) == f"{said}\n</think>\n\n"
    assert closing_text(Closing("", "So: ", 0), at_end=True) == "</think>\n\nSo: "
    assert closing_text(Closing("", "", 0), at_end=False) == "\n</think>\n\n"


def test_rounds_are_cut_where_their_text_is() -> None:
    done = Round(kept=[1, 2, 3], ends=[2, 3], units_kept=2, written=[4], handed=[5, 6])
    first, second = shortened([done, replace(done)], 8)
    assert first is done
    assert (second.kept, second.written, second.handed, second.units_kept) == ([1, 2], [], [], 1)


def test_the_entropy_counts_what_is_not_listed_as_one_token() -> None:
    assert entropy_of(torch.tensor([0.0])) == 0
    assert entropy_of(torch.tensor([0.5, 0.25]).log()) == pytest.approx(1.5 * math.log(2))
    assert entropy_of(torch.tensor([0.5, 0.5]).log()) == pytest.approx(math.log(2))


def test_an_answer_ends_with_the_brace_that_its_beginning_has_opened() -> None:
    pieces = ["\\frac{", "1}{2", "}", "}.", "\n", "7"]

    def ends(begun: str, tokens: list[int]) -> list[int | None]:
        boundary = Braced(pieces.__getitem__, begun)
        return [boundary.feed(token) for token in tokens]

    assert ends("\\boxed{", [0, 1, 2, 3]) == [None, None, None, 0]
    assert ends("\\boxed{", [5, 3]) == [None, 0]
    assert ends("Answer: ", [5, 3, 4]) == [None, None, 0]


def drawn(rng: random.Random) -> Watched:
    """A problem whose answers become right at some step; the score knows roughly when, and errs at times."""
    steps, right_from = 12, rng.randint(2, 11)
    trials = []
    for step in range(steps):
        right = step >= right_from
        mistaken = rng.random() < 0.02
        score = 1 / (1 + math.exp(-(rng.gauss(3 if right != mistaken else -3, 2))))
        trials.append(Trial(20 * step + 20, score, right))
    return Watched(trials, rng.random() < 0.9, 20 * steps)


def test_the_certified_risk_holds_over_draws_of_the_calibration() -> None:
    rng = random.Random(5)
    fresh = [drawn(rng) for _ in range(4000)]
    true = {level: sum(one.stopped(level)[0] for one in fresh) / len(fresh) for level in LEVELS}
    failures, thresholds = 0, set()
    for _ in range(120):
        found = certify([drawn(rng) for _ in range(150)], risk=0.1, delta=0.1)
        failures += true[found.threshold] > 0.1
        thresholds.add(found.threshold)
        assert found.bound <= 0.1
    assert len(thresholds) > 3, "the threshold does not follow the data"
    assert max(thresholds) < LEVELS[0], "nothing was ever saved"
    # delta of 120, and four standard deviations
    assert failures <= 12 + 4 * math.sqrt(120 * 0.1 * 0.9)


def test_a_larger_risk_saves_more_and_a_small_one_needs_problems() -> None:
    rng = random.Random(6)
    problems = [drawn(rng) for _ in range(300)]
    strict, lenient = (certify(problems, risk=risk) for risk in (0.05, 0.3))
    assert strict.threshold > lenient.threshold
    assert 0 < strict.saved < lenient.saved < 1
    with pytest.raises(UserError, match=r"stop\.risk=0\.02 cannot be certified from 20 problems"):
        certify(problems[:20], risk=0.02)


def test_the_first_bound_that_fails_ends_the_sequence() -> None:
    sure = Trial(10, 0.99, right=False)
    certain = Trial(20, 1.0, right=True)
    problems = [Watched([sure, certain], right=True, thought=30)] * 60
    assert certify(problems, risk=0.06).threshold > 0.99, "harm at a stricter threshold is skipped"


HOW = {"split": "paragraph", "rule": "logprob", "temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "draft": "d"}  # fmt: skip


def calibration(folder: Path, problems: Sequence[Watched], stop: Eat) -> str:
    StopCalibration.of(problems, EXAMPLE, described_stop(stop), HOW, {}).save(folder)
    return str(folder)


def bound(stop: Eat, **changes: object) -> Eat:
    run = Run(
        models={"target": EXAMPLE}, split="paragraph", sampling=Sampling(0.6), drafts="d", rule="logprob"
    )  # fmt: skip
    return stop.bind(replace(run, **changes))  # type: ignore[arg-type]


def test_a_calibration_keeps_its_problems_and_certifies_for_what_it_was_made(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    problems = [drawn(rng) for _ in range(200)]
    place = calibration(tmp_path / "one", problems, Eat())
    assert StopCalibration.load(place).problems == problems
    asked = Eat(risk=0.1, calibration=place)
    made = bound(asked)
    assert made.level == certify(problems, risk=0.1).threshold
    assert "at most 0.1 of the answers" in made.origin()
    for stop, changes, told in (
        (asked, {"rule": "semantic"}, "with accept=logprob"),
        (asked, {"sampling": Sampling(0.6, top_p=0.9)}, "at top_p=1, not 0.9"),
        (asked, {"drafts": "another"}, "on drafts of d, not of another"),
        (Eat(risk=0.1, calibration=place, every=2), {}, r"with stop\.every=1"),
        (ForcedAnswer(risk=0.1, calibration=place), {}, "with stop=eat"),
        (asked, {"sampling": Sampling(1.0)}, "temperature"),
        (asked, {"split": "sentence"}, "split"),
    ):
        with pytest.raises(UserError, match=told):
            bound(stop, **changes)  # type: ignore[arg-type]
        assert "\n" not in told
    bound(replace(asked, allow_mismatch=True), rule="semantic")
    bound(replace(asked, answer_tokens=9, audit=True))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Eat(risk=0.02), "run python -m semspec.calibrate_stop stop=eat"),
        (lambda: Eat(calibration="x"), r"give stop\.risk="),
        (lambda: Eat(risk=1.5, calibration="x"), r"stop\.risk=1\.5: give a number above 0"),
        (lambda: Eat(threshold=2), "give a score from 0 to 1"),
        (lambda: Eat(smooth=0), r"stop\.smooth=0"),
        (lambda: ForcedAnswer(agree=0), r"stop\.agree=0: give at least 1"),
        (lambda: Budget(tokens=0), r"stop\.tokens=0: give at least 1"),
        (lambda: Budget(words="</think>"), r"stop\.words contains </think>"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_line(make: object, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        make()  # type: ignore[operator]
    assert "\n" not in str(error.value)


def line(number: int, correct: bool, details: dict[str, float], alone: int) -> dict[str, object]:
    solve = dict.fromkeys((*metrics.SUMMED, *metrics.LATER), 1)
    solve |= {"finish": "eos", "correct": correct, "details": details}
    plain = {**solve, "correct": True, "details": {"thinking_tokens": alone}}
    return {**solve, "id": str(number), "plain": plain}


def test_a_result_has_the_asked_risk_beside_the_measured_one() -> None:
    common = {"stopped_by_limit": 0, "stop_trials": 3, "stop_risk_asked": 0.1, "stop_checked": 1}
    lines = [
        line(
            number,
            number != 0,
            {
                **common,
                "stopped": int(number < 5),
                "thinking_tokens": 60 if number < 5 else 100,
                "stop_harmed": int(number == 0),
                "stop_mended": 0,
                "unstopped_thinking_tokens": 100,
            },
            120,
        )
        for number in range(10)
    ]
    result = metrics.summarise(lines)
    check(json.loads(dumps(result["stop"])), SCHEMA["properties"]["stop"])
    told = {k: v for k, v in result["stop"].items() if k != "measured_interval"}
    assert told == {
        "stopped": 5, "by_limit": 0, "hopeless": 0, "trials": 30, "thinking_tokens": 80, "saved": pytest.approx(0.2),
        "saved_of_plain": pytest.approx(1 / 3), "asked": pytest.approx(0.1), "checked": 10, "harmed": 1,
        "mended": 0, "measured": 0.1,
    }  # fmt: skip
    low, high = result["stop"]["measured_interval"]
    assert low < 0.1 < high
    assert metrics.summarise([line(1, True, {}, 3)])["stop"] is None
