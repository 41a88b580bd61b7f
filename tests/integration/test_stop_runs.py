"""Runs of the embedded pair that stop thinking: folders, resuming, and the text before a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semspec.cli.calibrate_stop import collect
from semspec.config import RunConfig
from semspec.errors import UserError
from semspec.results.records import OpenRun, RunFolder
from semspec.runner import execute
from semspec.solver import Solver
from semspec.storage.files import LineFile
from semspec.training.stopping.head import Asked
from tests.support.pair import configuration

COMMON = (
    *("problems=2", "max_new_tokens=256", "accept=logprob", "plain=false", "quiet=true", "seed=3"),
    *("split=sentence", "draft_length=2"),
)
AUDIT = ("stop.audit=true", "stop.words=")
STOP = ("stop=eat", "stop.threshold=0.6", *AUDIT)
HEAD = "embedded/stop-probe-tiny-target"  # for another split and other words
PROBE = ("stop=probe", f"stop.probe={HEAD}", "stop.allow_mismatch=true", "stop.threshold=0.0003", *AUDIT)  # fmt: skip


class KilledError(Exception):
    """Stands in for a kill."""


def run(folder: Path, *options: str) -> dict[str, Any]:
    config: RunConfig = configuration(*COMMON, *options)
    return execute(config, {"seed": config.seed, "plain": config.plain}, folder)


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


@pytest.mark.deep
@pytest.mark.parametrize(("name", "options"), [("eat", STOP), ("probe", PROBE)])
def test_a_run_that_stops_thinking_resumes_and_leaves_the_text_before_alone(
    name: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(tmp_path / "whole", *options)
    texts, rounds = left(tmp_path / "whole")
    assert result["stop"]["stopped"] == 2 and result["stop"]["checked"] == 2
    assert 0.1 < result["stop"]["saved"] < 0.95
    for told in rounds.values():
        (at,) = [n for n, (*_, stop, _) in enumerate(told) if stop and "closed" in stop]
        assert told[at][3] == {"closed": name} and "sure of the answer" in told[at][4]

    commit = OpenRun.commit

    def killed(self: OpenRun, line: Any) -> None:
        if self.done:
            raise KilledError
        commit(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(OpenRun, "commit", killed)
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


def test_a_budget_without_room_for_thinking_is_refused_in_a_line() -> None:
    config = configuration(*COMMON, *STOP, "stop.answer_tokens=256")
    with pytest.raises(UserError, match="max_new_tokens=256: nothing is left for the thinking"):
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
