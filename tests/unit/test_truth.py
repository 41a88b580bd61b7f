"""Requested and measured risk: which drafted steps were accepted, and which of them are wrong."""

from __future__ import annotations

import pytest

from semspec.benchmarks.synthetic import Synthetic
from semspec.protocols import BenchmarkProblem, Grade
from semspec.report.terminal import notes, result_rows
from semspec.results.figures import problem_line
from semspec.results.metrics import summarise, wilson
from semspec.results.step_truth import ASKED, LEAST, accepted_steps
from semspec.types import Outcome, Round
from tests.support.runs import FALSE, solution, solve, text


def accepted(*tokens: list[int]) -> Round:
    joined = [t for one in tokens for t in one]
    return Round(drafted=joined, ends=[len(joined)], kept=joined, units_kept=len(tokens))


@pytest.mark.parametrize("opened", ["", "<think>\n"], ids=["whole", "opened in the prompt"])
def test_accepted_steps_are_compared_with_the_truth(opened: str) -> None:
    problem, steps = solution(0)
    own = [text().encode(step) for step in steps]
    wrong = text().encode(FALSE)
    rounds = [
        accepted(own[0], own[1]),  # two true steps in one draft
        Round(drafted=wrong, ends=[len(wrong)], handed=own[2]),  # rejected: nobody accepted it
        # the first half was salvaged, so the step is the target's
        Round(drafted=wrong, ends=[len(wrong)], written=own[3][:4], handed=own[3][4:]),
        accepted(wrong),
        accepted(own[4][:3]),  # accepted in part, and ended by the target: no accepted step
        Round(handed=own[4][3:]),
        *(accepted(tokens) for tokens in own[5:]),
    ]
    tokens = [t for r in rounds for t in (*r.kept, *r.written, *r.handed)]
    said = opened + text().decode(tokens)
    asked = BenchmarkProblem("x", problem.question, problem.answer)
    grade = Synthetic().grade(asked, said)
    assert [said[a:b] for a, b, _ in grade.steps] == [*steps[:4], FALSE, *steps[4:]]
    outcome = Outcome(tokens, "eos", rounds)
    whole = accepted_steps(outcome, said, grade, text().decode)
    assert whole == {"accepted_steps": len(steps) - 3 + 1, "accepted_steps_wrong": 1}
    cut = Outcome(tokens[:-3], "budget", [*rounds[:-1], accepted(own[-1][:-3])])
    said = opened + text().decode(cut.tokens)
    grade = Synthetic().grade(asked, said)
    assert not grade.steps[-1][2], "half a sentence says nothing"
    found = accepted_steps(cut, said, grade, text().decode)
    assert found == {"accepted_steps": len(steps) - 3, "accepted_steps_wrong": 1}


def test_without_a_truth_of_steps_there_is_no_figure() -> None:
    assert accepted_steps(Outcome([], "eos", []), "", Grade(True, "4", {}), text().decode) is None
    result = summarise([problem_line("a", solve([Round()], 1.0, True), None)])
    assert result["risk"] is None
    assert not [row for row in result_rows(result) if row[0].startswith("risk")]


def test_the_result_has_asked_and_measured_risk() -> None:
    lines = []
    for name, wrong in (("a", 0), ("b", 3)):
        one = problem_line(name, solve([Round(kept=[1])], 1.0, True), solve([Round()], 2.0, True))
        one["details"] = {
            ASKED: 0.05,
            LEAST: 0.1,
            "accepted_steps": 20,
            "accepted_steps_wrong": wrong,
        }
        lines.append(one)
    result = summarise(lines)
    assert result["risk"] == {
        "asked": 0.05,
        "least": 0.1,
        "accepted": 40,
        "wrong": 3,
        "measured": 0.075,
        "measured_interval": wilson(3, 40),
    }
    rows = {row[0]: row[1:] for row in result_rows(result)}
    assert rows["risk asked"] == ("-", "0.05")
    assert rows["risk measured [95 %]"] == ("-", "0.075 [0.026, 0.199]")
    (told,) = (note for note in notes(result) if note.startswith("risk asked"))
    assert "probability below 0.1; measured: 3 of 40 accepted drafted steps are wrong" in told
