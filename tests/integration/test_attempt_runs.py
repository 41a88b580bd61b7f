"""Runs of the embedded pair with several attempts at each problem: folders, kills, memories and arms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semspec.config import recorded
from semspec.errors import UserError
from semspec.in_turn import Arm
from semspec.report.terminal import Screen
from semspec.results.records import OpenRun, RunFolder
from semspec.runner import execute, execute_arms
from tests.support.pair import configuration
from tests.unit.test_arms import written

COMMON = ("max_new_tokens=12", "quiet=true", "seed=3", "temperature=1")
METHODS = {
    "logprob": ("accept=logprob", "split=sentence"),
    "suffix": ("draft=suffix", "draft.remember=1", "accept=lossless", "split=token"),
}


class KilledError(Exception):
    """Stands in for a kill."""


def arm(folder: Path, method: str, problems: int = 2, *more: str) -> Arm:
    config = configuration(*COMMON, *METHODS[method], f"problems={problems}", *more)
    resolved = {"problems": problems, "attempts": config.attempts, "plain": config.plain}
    return Arm(config, resolved, folder / method)


def run(folder: Path, method: str, *more: str) -> dict[str, Any]:
    one = arm(folder, method, 2, *more)
    return execute(one.config, one.resolved, one.folder)


def test_first_attempts_are_the_run_with_one_and_the_others_are_drawn_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "one", "logprob")
    result = run(tmp_path / "two", "logprob", "attempts=2")
    one, two = (written(tmp_path / name / "logprob") for name in ("one", "two"))
    names = list(one["lines"])
    assert list(two["lines"]) == [*names, *(f"{name}#2" for name in names)]
    assert {name: two["lines"][name] for name in names} == one["lines"]
    assert {key: two["rounds"][key] for key in one["rounds"]} == one["rounds"]
    for name in names:
        first, second = two["lines"][name], two["lines"][f"{name}#2"]
        assert second["attempt_of"] == name and second["question"] == first["question"]
        assert second["text"] != first["text"]
        assert second["plain"]["text"] != first["plain"]["text"]
    assert (result["problems"], result["answers"], result["plain"]["answers"]) == (2, 4, 4)
    page = (tmp_path / "two" / "logprob" / "report.html").read_text()
    assert "2 problems x 2 attempts" in page

    commit = OpenRun.commit

    def killed(self: OpenRun, line: Any) -> None:
        if len(self.done) == 3:
            raise KilledError
        commit(self, line)

    place = tmp_path / "killed"
    with monkeypatch.context() as patched:
        patched.setattr(OpenRun, "commit", killed)
        with pytest.raises(KilledError):
            run(place, "logprob", "attempts=2")
    assert len(list(RunFolder(place / "logprob").problem_lines())) == 3
    run(place, "logprob", "attempts=2")
    assert written(place / "logprob") == two

    for place, attempts in (("one", 2), ("two", 1)):
        with pytest.raises(UserError, match=r"another configuration \(attempts was \d, is \d\)"):
            run(tmp_path / place, "logprob", f"attempts={attempts}")


def test_no_attempt_copies_from_another_one_at_its_problem(tmp_path: Path) -> None:
    """Also with a drafter that remembers answers: each attempt remembers those of its own number."""
    longer = ("attempts=2", "max_new_tokens=24", "plain=false")
    run(tmp_path, "suffix", *longer)
    found = written(tmp_path / "suffix")["lines"]
    # the first problem's second attempt has nothing to remember, though three answers are there
    name = list(found)[2]
    one = arm(tmp_path, "suffix", 1, "draft.remember=0", *longer)
    execute(one.config, one.resolved, tmp_path / "nothing remembered")
    assert written(tmp_path / "nothing remembered")["lines"][name] == found[name]


def test_arms_have_the_same_attempts_and_more_problems_later(tmp_path: Path) -> None:
    silent, names = Screen(quiet=True), ("logprob", "suffix")
    run(tmp_path / "alone", "logprob", "attempts=2")
    expected = written(tmp_path / "alone" / "logprob")
    for problems in (1, 2):
        arms = [arm(tmp_path / "arms", name, problems, "attempts=2") for name in names]
        execute_arms(arms, silent, grow=True)
    for name in names:
        found = written(tmp_path / "arms" / name)
        assert set(found["lines"]) == set(expected["lines"])
        assert name != "logprob" or found == expected
        held = RunFolder(tmp_path / "arms" / name)
        assert held.config is not None and held.config["problems"] == 2
        assert held.result is not None and held.result["answers"] == 4
    unlike = [arm(tmp_path, "logprob", 2, "attempts=2"), arm(tmp_path, "suffix", 2, "attempts=3")]
    with pytest.raises(
        UserError, match="run interleaved, but differ in attempts: give both the same"
    ):
        execute_arms(unlike, silent)


def test_a_folder_of_one_attempt_is_what_it_was_before_there_were_more(tmp_path: Path) -> None:
    one = arm(tmp_path, "logprob", 1)
    execute(one.config, {**one.resolved, "attempts": 1}, one.folder)
    stored = json.loads((one.folder / "config.json").read_text())
    assert "attempts" not in stored["config"] and stored["config"] == recorded(one.config, {"problems": 1, "plain": True})  # fmt: skip
    lines = (one.folder / "problems.jsonl").read_text(), (one.folder / "rounds.jsonl").read_text()
    assert not any("attempt" in text for text in lines)
    assert "answers" not in (RunFolder(one.folder).result or {"answers": 0})
