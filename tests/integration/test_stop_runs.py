"""Runs of the embedded pair with early stopping: folders, resuming, and the text before a stop."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import Trial, Watched, described_stop
from semspec.cli.calibrate_stop import collect, how
from semspec.config import RunConfig
from semspec.decoding.stopping import WORDS
from semspec.errors import UserError
from semspec.report.page import run_page
from semspec.report.runs import read_run
from semspec.results.records import OpenRun, RunFolder
from semspec.runner import execute
from semspec.solver import Solver
from semspec.storage.files import LineFile
from semspec.training.stopping.head import Asked
from semspec.types import Round
from tests.support.pair import configuration

COMMON = (
    *("problems=2", "max_new_tokens=256", "accept=logprob", "plain=false", "quiet=true", "seed=3"),
    *("split=sentence", "draft_length=2"),
)
AUDIT = ("stop.audit=true", "stop.words=")
STOP = ("stop=eat", "stop.threshold=0.6", *AUDIT)
HEAD = "embedded/stop-probe-tiny-target"  # for another split and other words
PROBE = ("stop=probe", f"stop.probe={HEAD}", "stop.allow_mismatch=true", "stop.threshold=0.0003", *AUDIT)  # fmt: skip
BUDGET = ("stop=budget", "stop.tokens=60", *AUDIT)
ANSWER = ("stop=answer", "stop.threshold=0.3", "stop.every=2", *AUDIT)
RISK = ("stop=eat", "stop.risk=0.3", "stop.hopeless=0.5", *AUDIT)
SURE, HAD = "sure of the answer after", r"the thinking has had \d+ of 60 tokens"


class KilledError(Exception):
    """Stands in for a kill."""


def run(folder: Path, *options: str) -> dict[str, Any]:
    config: RunConfig = configuration(*COMMON, *options)
    of = {"model": {"path": config.model.path, "revision": None}, "split": config.split}
    return execute(config, {"seed": config.seed, "plain": config.plain, **of}, folder)


def left(folder: Path) -> Any:
    """The texts, counts and rounds of a run."""
    lines = {line["id"]: line for line in RunFolder(folder).problem_lines()}
    rounds = {name: list(RunFolder(folder).round_lines(name)) for name in lines}
    return (
        {name: (line["text"], line["details"]) for name, line in lines.items()},
        {
            name: [(r["kept"], r["written"], r["handed"], r.get("stop"), r["note"]) for r in told]
            for name, told in rounds.items()
        },
    )


def calibration(folder: Path) -> str:
    """A calibration for ``RISK``: scores that stay low are of problems that are never solved, only high ones are right."""
    config = configuration(*COMMON, "stop=eat", "stop.words=")
    slow = [Trial(20 * n + 20, 0.97, right=False) for n in range(8)]
    solved = Watched([*slow, Trial(180, 1.0, right=True)], right=True, thought=200)
    never = Watched([Trial(20 * n + 20, 0.2, right=False) for n in range(9)], right=False, thought=200)  # fmt: skip
    with Solver(config) as solver:
        facts = solver.facts
    made = StopCalibration.of([solved, never] * 100, facts, described_stop(config.stop), how(config), {})  # fmt: skip
    made.save(folder)
    return f"stop.calibration={folder}"


def at_commit(patched: pytest.MonkeyPatch) -> None:
    """Kill a run before the second problem's line."""
    commit = OpenRun.commit

    def killed(self: OpenRun, line: Any) -> None:
        if self.done:
            raise KilledError
        commit(self, line)

    patched.setattr(OpenRun, "commit", killed)


def behind_the_closing(patched: pytest.MonkeyPatch) -> None:
    """Kill a run that has written the round which closes the second problem's thinking, and no answer."""
    append = OpenRun.append_rounds

    def killed(self: OpenRun, problem_id: str, mode: Any, rounds: Iterable[Round]) -> None:
        told = list(rounds)
        if not self.done:
            append(self, problem_id, mode, told)
            return
        (at,) = [n for n, one in enumerate(told) if "closed" in one.stop]
        assert at + 1 < len(told), "there is no answer behind it"
        append(self, problem_id, mode, told[: at + 1])
        raise KilledError

    patched.setattr(OpenRun, "append_rounds", killed)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("options", "kill", "by", "why"),
    [
        pytest.param(STOP, at_commit, "eat", SURE, id="eat"),
        pytest.param(PROBE, at_commit, "probe", SURE, id="probe"),
        pytest.param(BUDGET, behind_the_closing, "budget", HAD, id="budget"),
        pytest.param(ANSWER, behind_the_closing, "answer", SURE, id="answer"),
        pytest.param(RISK, behind_the_closing, "hopeless", "given up as hopeless: 0", id="hopeless"),
    ],
)  # fmt: skip
def test_a_run_that_stops_thinking_resumes_and_leaves_the_text_before_alone(
    options: tuple[str, ...],
    kill: Callable[[pytest.MonkeyPatch], None],
    by: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if options is RISK:
        options = (*RISK, calibration(tmp_path / "calibration"))
    result = run(tmp_path / "whole", *options)
    texts, rounds = left(tmp_path / "whole")
    assert result["stop"]["stopped"] == 2 and result["stop"]["checked"] == 2
    assert 0.1 < result["stop"]["saved"] < 0.95
    assert result["stop"]["hopeless"] == (2 if by == "hopeless" else 0)
    for told in rounds.values():
        (at,) = [n for n, (*_, stop, _) in enumerate(told) if stop and "closed" in stop]
        assert told[at][3] == {"closed": by} and re.search(why, told[at][4])

    with monkeypatch.context() as patched:
        kill(patched)
        with pytest.raises(KilledError):
            run(tmp_path / "killed", *options)
    assert run(tmp_path / "killed", *options)["stop"] == result["stop"]
    assert left(tmp_path / "killed") == (texts, rounds)

    run(tmp_path / "free", "stop=none")
    config = RunFolder(tmp_path / "free").config
    assert config is not None and "stop" not in config["plugins"], "folders are as they were"
    free, without = left(tmp_path / "free")
    assert not any(stop for told in without.values() for *_, stop, _ in told)
    for solved, (text, details) in texts.items():
        thought, _, answer = text.partition("</think>")
        assert answer.strip() and free[solved][0].startswith(thought)
        assert details["thinking_tokens"] < details["unstopped_thinking_tokens"]
    with pytest.raises(UserError, match="another configuration"):
        run(tmp_path / "free", *options)


def test_a_report_shows_where_the_thinking_ended_and_what_was_saved(tmp_path: Path) -> None:
    options = ("problems=1", "stop=budget", "stop.tokens=40", "stop.audit=true")
    result = run(tmp_path / "run", *options)
    page = html.unescape(re.sub(r"<[^>]*>", "", run_page(read_run(tmp_path / "run"))))
    ((name, told),) = left(tmp_path / "run")[1].items()
    (at,) = [n for n, (*_, stop, _) in enumerate(told) if stop and "closed" in stop]
    assert name in page and re.fullmatch(r"the thinking has had \d+ of 40 tokens", told[at][4])
    assert told[at][4] in page, "it does not say why the thinking ended"
    thought, words, answer = page.partition(WORDS)
    assert words and "boxed" in answer and "boxed" not in thought.rpartition("<think>")[2]
    saved = f"{result['stop']['saved']:.0%}".replace("%", " %")
    assert 0.1 < result["stop"]["saved"] and re.search(r"thinking closed\s*1 of 1\b", page)
    assert re.search(rf"thinking saved\s*{saved}", page), saved


def test_a_budget_without_room_for_thinking_is_refused_in_a_line() -> None:
    config = configuration(*COMMON, *STOP, "stop.answer_tokens=256")
    with pytest.raises(UserError, match="max_new_tokens=256 leaves no room for thinking"):
        Solver(config)


@pytest.mark.deep
def test_a_killed_training_of_a_head_resumes_to_the_same_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*COMMON, "stop=probe", "concurrency=1", "max_new_tokens=160", "stop.answer_tokens=8"]
    config = configuration(*options)
    asked = Asked.of("step", "mean,last", (0, -1), config)

    def files(folder: Path) -> dict[str, bytes]:
        found = [folder / "trials.jsonl", *sorted((folder / "states").iterdir())]
        return {file.name: file.read_bytes() for file in found}

    collect(config, tmp_path / "whole", asked)
    append, times = LineFile.append, list[int]()

    def killed(self: LineFile, line: Any) -> None:
        times.append(1)
        if len(times) > 1:  # its states are written, and its line is not
            raise KilledError
        append(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "append", killed)
        with pytest.raises(KilledError):
            collect(config, tmp_path / "killed", asked)
    assert len(files(tmp_path / "killed")) == 5
    collect(config, tmp_path / "killed", asked)
    whole = files(tmp_path / "whole")
    assert files(tmp_path / "killed") == whole and whole["trials.jsonl"].count(b"\n") == 2
    other = Asked.of("closing", "mean,last", (0, -1), config)
    with pytest.raises(UserError, match="was begun with other options"):
        collect(config, tmp_path / "killed", other)
