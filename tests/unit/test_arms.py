"""Runs as arms of one process: turns, resuming after kills, and the same results as single runs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from semspec import runner
from semspec.cli import arms as arm_jobs
from semspec.errors import UserError
from semspec.in_turn import Arm
from semspec.jobs import sweep
from semspec.jobs.job import ARM, Job, left_out, state_of
from semspec.protocols import BenchmarkProblem
from semspec.report.terminal import Screen
from semspec.results.records import Mode, OpenRun, RunFolder
from semspec.runner import execute, execute_arms
from semspec.solver import Solution, Solver
from tests.support.pair import configuration

COMMON = ("max_new_tokens=16", "quiet=true", "temperature=0.6", "seed=3")
METHODS = {
    "lookup": ("draft=prompt_lookup", "accept=lossless", "split=token"),
    "logprob": ("accept=logprob", "split=paragraph"),
    "nested": ("accept=logprob", "nested=suffix", "split=sentence"),
}


def options(name: str, problems: int, *more: str) -> tuple[str, ...]:
    return (*METHODS[name], *COMMON, f"problems={problems}", *more)


def arm(folder: Path, name: str, problems: int = 4, *more: str) -> Arm:
    config = configuration(*options(name, problems, *more))
    resolved = {"options": options(name, 0, *more), "problems": problems}
    return Arm(config, resolved, folder / name, {"job": name})


def solve(folder: Path, *names: str, problems: int = 4, **how: Any) -> None:
    silent = Screen(quiet=True)
    execute_arms([arm(folder, name, problems) for name in names], silent, **how)


def written(folder: Path) -> dict[str, Any]:
    """What a run says but for times: texts and rounds of both modes."""
    timed = {"seconds", "wall", "draft_seconds", "verify_seconds", "write_seconds"}

    def without(line: dict[str, Any]) -> dict[str, Any]:
        return {k: without(v) if k == "plain" and v else v for k, v in line.items() if k not in timed}  # fmt: skip

    kept = RunFolder(folder)
    lines = {line["id"]: without(line) for line in kept.problem_lines()}
    modes: tuple[Mode, ...] = ("plain", "speculative")
    rounds = {
        f"{i} {mode}": [without(r) for r in kept.round_lines(i, mode)] for i in lines for mode in modes
    }  # fmt: skip
    return {"lines": lines, "rounds": rounds}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each method in a run of its own."""
    found = {}
    for name in METHODS:
        folder = tmp_path_factory.mktemp("alone") / name
        one = arm(folder.parent, name)
        execute(one.config, one.resolved, folder)
        found[name] = written(folder)
        assert len(found[name]["lines"]) == 4
    return found


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[str, ...]]]:
    """Who solves which problems, in the order of the calls; the warm-up is left out."""
    calls: list[tuple[str, str, tuple[str, ...]]] = []

    class Recorded(Solver):
        def solve(
            self, problems: Sequence[BenchmarkProblem], mode: Mode, budget: int | None = None
        ) -> Iterator[Solution]:
            if budget is None:
                name = next(n for n, o in METHODS.items() if f"split={self.config.split}" in o)
                calls.append((mode, name, tuple(p.id for p in problems)))
            yield from super().solve(problems, mode, budget)

    monkeypatch.setattr(runner, "Solver", Recorded)
    return calls


def test_arms_take_turns_and_each_run_is_what_it_is_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Any]]
) -> None:
    loaded: list[str] = []
    real = runner.Engines.load

    def load(self: Any, engine: Any, folder: Path, role: Any, probes: Any) -> Any:
        before = len(self._loaded)
        found = real(self, engine, folder, role, probes)
        loaded.extend([role] * (len(self._loaded) - before))
        return found

    monkeypatch.setattr(runner.Engines, "load", load)
    calls = recorded(monkeypatch)
    solve(tmp_path, *METHODS)
    ids = list(alone["lookup"]["lines"])
    order = [("plain", "lookup"), *(("speculative", name) for name in METHODS)]
    turns = [(*who, (ids[n],)) for n in range(4) for who in [*order[n % 4 :], *order[: n % 4]]]
    assert calls == turns  # the target alone once a problem, and nobody always first
    assert loaded == ["target", "draft"]
    for name in METHODS:
        assert written(tmp_path / name) == alone[name]
        result = RunFolder(tmp_path / name).result
        assert result is not None and result["speedup"] > 0 and result["plain"]["problems"] == 4
        assert RunFolder(tmp_path / name).status["job"] == name
        (line, *_) = RunFolder(tmp_path / name).problem_lines()
        (other, *_) = RunFolder(tmp_path / "lookup").problem_lines()
        assert line["plain"] == other["plain"]  # the same solve, its time included


@pytest.mark.parametrize("kept", range(1, 8, 2))
@pytest.mark.deep
def test_a_kill_at_any_problem_costs_that_problem(
    kept: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: dict[str, dict[str, Any]],
) -> None:
    real, count = OpenRun.commit, iter(range(100))

    def commit(self: OpenRun, line: Any) -> None:
        if next(count) == kept:
            raise KeyboardInterrupt
        real(self, line)

    names = ("lookup", "logprob")
    with monkeypatch.context() as killing:
        killing.setattr(OpenRun, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            solve(tmp_path, *names)
    assert [RunFolder(tmp_path / n).status["state"] for n in names] == ["killed"] * 2
    before = {name: (tmp_path / name / "problems.jsonl").read_bytes() for name in names}
    assert sum(held.count(b"\n") for held in before.values()) == kept

    calls = recorded(monkeypatch)
    solve(tmp_path, *names)
    for name in names:
        assert (tmp_path / name / "problems.jsonl").read_bytes().startswith(before[name])
        assert written(tmp_path / name) == alone[name]
        solved = [who for mode, who, _ in calls if mode == "speculative"].count(name)
        assert solved == 4 - before[name].count(b"\n")
    plain = [ids for mode, _, ids in calls if mode == "plain"]
    assert len(plain) == 4 - min(held.count(b"\n") for held in before.values())

    calls.clear()
    solve(tmp_path, *names)
    assert not calls


def test_fewer_problems_of_some_arms_and_more_of_all_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, dict[str, Any]]
) -> None:
    silent = Screen(quiet=True)
    execute_arms([arm(tmp_path, "lookup", 3), arm(tmp_path, "logprob", 2)], silent, grow=True)
    assert [len(written(tmp_path / n)["lines"]) for n in ("lookup", "logprob")] == [3, 2]
    calls = recorded(monkeypatch)
    solve(tmp_path, "lookup", "logprob", grow=True)
    assert [len([c for c in calls if c[:2] == ("speculative", n)]) for n in ("lookup", "logprob")] == [1, 2]  # fmt: skip
    for name in ("lookup", "logprob"):
        assert written(tmp_path / name) == alone[name]
        held = RunFolder(tmp_path / name)
        assert held.result is not None and held.result["problems"] == 4
        assert held.config is not None and held.config["problems"] == 4
    calls.clear()
    solve(tmp_path, "lookup", "logprob", problems=2, grow=True)  # what is there stays
    assert not calls and len(written(tmp_path / "lookup")["lines"]) == 4
    with pytest.raises(UserError, match="contains a run with another configuration"):
        solve(tmp_path, "lookup", "logprob", problems=5)


def test_at_several_problems_at_a_time_each_run_is_what_it_is_by_itself(tmp_path: Path) -> None:
    names = ("lookup", "logprob")
    asked = ("concurrency=2",)
    for name in names:
        one = arm(tmp_path / "alone", name, 3, *asked)
        execute(one.config, one.resolved, one.folder)
    arms = [arm(tmp_path / "together", name, 3, *asked) for name in names]
    execute_arms(arms, Screen(quiet=True))
    for name in names:
        together = written(tmp_path / "together" / name)
        assert together == written(tmp_path / "alone" / name) and len(together["lines"]) == 3


def test_arms_that_differ_in_more_than_the_method_are_refused(tmp_path: Path) -> None:
    both = [arm(tmp_path, "lookup"), arm(tmp_path, "logprob", 4, "temperature=1")]
    with pytest.raises(
        UserError, match="run interleaved, but differ in temperature: give both the same"
    ):
        execute_arms(both, Screen(quiet=True))
    assert not list(tmp_path.iterdir())


def test_a_refused_arm_leaves_no_false_start_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "logprob").mkdir()
    (tmp_path / "logprob" / "result.json").write_text("[]")
    with pytest.raises(UserError, match=r"logprob holds result.json but no config.json of a run"):
        solve(tmp_path, "lookup", "logprob", problems=1)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["result.json"]


def test_every_arm_records_the_identity_of_what_the_engines_they_share_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runner.Engines.load

    def load(self: Any, engine: Any, folder: Path, role: Any, probes: Any) -> Any:
        found = real(self, engine, folder, role, probes)
        found.served, found.inside = f"the {role} of a server", None  # type: ignore[attr-defined]
        found.away, found.ended = 0, False  # type: ignore[attr-defined]
        return found

    with monkeypatch.context() as serving:
        serving.setattr(runner.Engines, "load", load)
        solve(tmp_path, "logprob", "nested", problems=1)
    for name in ("logprob", "nested"):
        weights = json.loads((tmp_path / name / "weights.json").read_text())
        assert len(weights["files"]) == 2
        assert weights["servers"] == {f"{r}'s server": f"the {r} of a server" for r in ("target", "draft")}  # fmt: skip


def test_an_arm_begun_with_other_weights_is_refused_and_not_left_out(tmp_path: Path) -> None:
    solve(tmp_path, "lookup", problems=1)
    file = tmp_path / "lookup" / "weights.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({"files": dict.fromkeys(stored["files"], "sha256 0")}))
    left_out: dict[Path, UserError] = {}
    with pytest.raises(UserError, match="lookup was begun with another "):
        solve(tmp_path, "lookup", "logprob", problems=2, grow=True, left_out=left_out)
    assert not left_out and not (tmp_path / "logprob").exists()
    assert len(written(tmp_path / "lookup")["lines"]) == 1


def job(*arms: Job, **more: Any) -> Job:
    return Job("block", more.get("asked", ()), "semspec.cli.arms", arms=arms)


def test_an_arm_that_cannot_be_had_is_left_out_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Job("good", options("lookup", 1), ARM)
    lost = Job("lost", (*options("logprob", 1), "draft.model.path=missing"), ARM)
    both = job(good, lost)
    assert Job.from_json(both.to_json()) == both
    console = Screen(file=io.StringIO(), width=200)
    sweep.carry_out([both], tmp_path, console)
    assert "lost: left out: no model folder" in capsys.readouterr().err
    assert state_of(both, tmp_path) == ("finished", "") and sweep.ended([both], tmp_path) == 0
    assert left_out(lost, tmp_path).startswith("no model folder")
    sweep.carry_out([both], tmp_path, console)  # what can be had is finished: nothing fails
    assert state_of(both, tmp_path) == ("finished", "") and sweep.ended([both], tmp_path) == 0
    assert "1 arms, 1 left out" in console.file.getvalue()  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "sweep.json").read_text())["jobs"] == [good.about, lost.about]

    mended = job(good, Job("lost", options("logprob", 1), ARM))
    sweep.carry_out([mended], tmp_path, console)
    assert not left_out(mended.arms[1], tmp_path)
    assert state_of(mended.arms[1], tmp_path)[0] == "finished"

    none = job(Job("none", lost.overrides, ARM))
    sweep.carry_out([none], tmp_path, console)
    assert state_of(none, tmp_path)[0] == "failed" and sweep.ended([none], tmp_path) == 1


def test_nothing_is_written_where_the_folder_of_an_arm_is_somebody_elses(tmp_path: Path) -> None:
    mine = tmp_path / "theirs" / "status.json"
    mine.parent.mkdir()
    mine.write_text("[1]")
    both = job(*(Job(name, options("lookup", 1), ARM) for name in ("own", "theirs")))
    sweep.carry_out([both], tmp_path, Screen(quiet=True))
    assert state_of(both, tmp_path) == (
        "failed", f"{mine} is not a run's; choose another hydra.run.dir"
    )  # fmt: skip
    assert mine.read_text() == "[1]" and not (tmp_path / "own").exists()


def test_divergences_of_kept_tokens_stand_in_the_lines(tmp_path: Path) -> None:
    fixed = (
        "draft_length=5",
        "adaptive=false",
    )  # the texts are too short to find out what drafts cost
    token = ("accept=typical", "split=token", *fixed, *COMMON, "problems=1")
    arms = [Job("typical", token, ARM), Job("steps", options("logprob", 1), ARM)]  # fmt: skip
    arm_jobs.do_arms(job(*arms, asked=("divergence",)), tmp_path, Screen(quiet=True))
    (line,) = RunFolder(tmp_path / "typical").problem_lines()
    assert line["details"]["kept_tokens"] == line["kept_tokens"] > 0
    assert all(0 <= js < 0.7 for js in line["details"]["js"])
    (line,) = RunFolder(tmp_path / "steps").problem_lines()
    assert "js" not in line["details"]
