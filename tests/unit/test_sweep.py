"""Names and states of a sweep's jobs, and what a second start does with them."""

from __future__ import annotations

import importlib
import io
import json
import os
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.choices.settle import settle
from semspec.errors import UserError
from semspec.jobs import sweep
from semspec.jobs.job import ERROR, Job, say, state_of, work
from semspec.jobs.launchers import options_of, queued
from semspec.jobs.sweep import LONGEST, carry_out, name_of, plan, with_nested_drafts
from semspec.report.terminal import Screen
from semspec.results.records import RunFolder
from semspec.storage.lock import FolderLock

TINY = ("problems=1", "max_new_tokens=8", "quiet=true")


def names(*overrides: str) -> list[str]:
    return [job.name for job in plan(overrides)]


def test_names_say_what_varies_and_nothing_else() -> None:
    assert names("split=paragraph,sentence", "problems=2", "draft_length=1,2") == [
        "split=paragraph,draft_length=1",
        "split=paragraph,draft_length=2",
        "split=sentence,draft_length=1",
        "split=sentence,draft_length=2",
    ]
    assert [job.overrides for job in plan(["problems=2", "seed=0,1"])] == [
        ("problems=2", "seed=0"),
        ("problems=2", "seed=1"),
    ]
    assert names("draft_length=1,2,1") == ["draft_length=1", "draft_length=2"]
    assert names("seed=0,1", "seed=3,4") == ["seed=3", "seed=4"]  # the last one wins
    assert names("split=sentence", "quiet=true") == ["split=sentence"]  # one job, of no sweep
    assert names("seed=range(0,3)") == ["seed=0", "seed=1", "seed=2"]


def test_each_job_gets_nested_drafts_as_a_run_of_its_own_does(tmp_path: Path) -> None:
    jobs = plan(["accept=logprob,lookahead", "adaptive=true,false", "problems=3"])
    whole, told = with_nested_drafts(jobs, tmp_path)
    assert [job.name for job in whole] == [job.name for job in jobs], (
        "no folder is named after them"
    )
    for job, one in zip(jobs, whole, strict=True):
        alone = settle(job.overrides, helped=True)
        assert set(one.overrides) == set(alone.arguments), one.name
    assert sum("nested=lm" in job.overrides for job in whole) == 1
    assert told.startswith("nested: lm (") and told.endswith(") in 1 of 4 jobs")
    said, told = with_nested_drafts(plan(["nested=none"]), tmp_path)
    assert not told and said[0].overrides == ("nested=none",)


def test_a_sweep_that_was_begun_without_nested_drafts_goes_on_without_them(tmp_path: Path) -> None:
    (job,) = plan([*TINY, "accept=logprob", "salvage=false"])
    carry_out([Job("begun", job.overrides)], tmp_path, quiet())
    now = Job("begun", tuple(o for o in job.overrides if not o.startswith("salvage=")))
    (whole,), told = with_nested_drafts([now], tmp_path)
    assert not told and "nested=lm" not in whole.overrides
    carry_out([whole], tmp_path, quiet())  # another configuration would be refused


def test_a_sweep_of_no_options_is_called_default() -> None:
    assert names() == names("quiet=true") == ["default"]
    assert names("transcript=true,false") == ["transcript=True", "transcript=False"]


def test_a_longer_sweep_finds_the_jobs_of_a_shorter_one() -> None:
    assert set(names("seed=0,1", "split=token,sentence")) < set(
        names("seed=0,1,2", "split=token,sentence,paragraph")
    )


def test_names_that_cannot_stand_as_they_are_stay_apart() -> None:
    one, other = names("draft.model.path=/a/b,/a-b")
    assert one != other and "/" not in one + other and one.startswith("draft.model.path=-a-b-")
    assert names("draft.model.path=/a/b,/a-b") == [one, other]  # the same ones each time
    long = "x" * 300
    listed = names(f"draft.model.path={long}1,{long}2")
    assert len({*listed}) == 2 and all(len(name) <= LONGEST for name in listed)
    assert names("benchmark.domains=[residues],[residues,weekdays]")[1].startswith(
        "benchmark.domains=-residues,weekdays"
    )


@given(st.lists(st.text(string.printable + "äß日", min_size=1), min_size=1, max_size=5))
def test_every_name_is_a_folder_of_its_own(values: list[str]) -> None:
    made = [name_of([f"key={value}"]) for value in values]
    assert len(set(made)) == len(set(values))
    for name in made:
        assert 0 < len(name) <= LONGEST and name == Path(name).name and name not in (".", "..")
        assert set(name) <= {*string.ascii_letters, *string.digits, *"-._=,"}
        assert not name.startswith((".", "-"))


def quiet() -> Screen:
    return Screen(file=io.StringIO(), width=200)


def said(console: Screen) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def status(root: Path, job: Job) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((root / job.name / "status.json").read_text())
    return told


def test_jobs_end_alone_and_only_what_is_not_finished_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = plan([*TINY, "draft.model.path=embedded/tiny-draft,missing", "seed=0,1"])
    broken = jobs[1].name

    from semspec import runner

    real = runner.execute

    def execute(config: Any, resolved: Any, folder: Path, *rest: Any) -> Any:
        if folder.name == broken and not (tmp_path / "mended").exists():
            raise RuntimeError("a fault\nof ours")
        return real(config, resolved, folder, *rest)

    monkeypatch.setattr(runner, "execute", execute)
    carry_out(jobs, tmp_path, quiet())
    assert [state_of(job, tmp_path)[0] for job in jobs] == [
        "finished", "failed", "failed", "failed"
    ]  # fmt: skip
    assert state_of(jobs[1], tmp_path)[1] == "RuntimeError: a fault"
    assert "Traceback" in (tmp_path / broken / ERROR).read_text()
    assert state_of(jobs[2], tmp_path)[1].startswith("no model folder")
    for job in jobs:
        told = status(tmp_path, job)
        assert (told["job"], told["overrides"]) == (job.name, list(job.overrides))
        assert told["pid"] == os.getpid() and told["host"] and told["started"] <= told["ended"]
        assert (told["error"] is None) == (told["state"] == "finished")
    listed = json.loads((tmp_path / "sweep.json").read_text())["jobs"]
    assert [one["job"] for one in listed] == [job.name for job in jobs]

    (tmp_path / "mended").touch()
    finished = tmp_path / jobs[0].name
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in finished.iterdir()}
    console = quiet()
    carry_out(jobs, tmp_path, console)
    assert [state_of(job, tmp_path)[0] for job in jobs] == [
        "finished", "finished", "failed", "failed"
    ]  # fmt: skip
    assert not (tmp_path / broken / ERROR).exists()
    after = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in finished.iterdir()}
    assert after == before
    assert "2/4" in said(console) and "4/4" in said(console)


def test_a_quiet_sweep_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = [o for o in TINY if not o.startswith("quiet")]
    assert sweep.main([*TINY, f"sweep={tmp_path}"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (
        sweep.main([*loud, f"sweep={tmp_path}"]) == 0
    )  # finished before: the table is shown again
    assert "finished" in capsys.readouterr().out
    assert sweep.main([*TINY, "draft.model.path=missing", f"sweep={tmp_path / 'x'}"]) == 1
    told = capsys.readouterr()
    assert not told.out and told.err.startswith("semspec: 1 of 1 jobs are not finished: ")


@pytest.mark.parametrize("key", ["sweep", "hydra.sweep.dir"])
def test_a_sweep_without_a_folder_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{key}= is empty: name a folder"):
        sweep.main([*TINY, f"{key}="])
    assert not list(tmp_path.iterdir())


def test_another_configuration_under_the_same_names_is_refused(tmp_path: Path) -> None:
    carry_out(plan([*TINY, "seed=0,1"]), tmp_path, quiet())
    with pytest.raises(UserError, match=r"max_new_tokens was 8, is 9.*another sweep=DIR"):
        carry_out(plan([*TINY, "max_new_tokens=9", "seed=0,1"]), tmp_path, quiet())
    carry_out(plan([*TINY, "quiet=false", "seed=0,1"]), tmp_path, quiet())  # only shown otherwise


def test_a_job_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    (job,) = plan(TINY)
    folder = tmp_path / job.name
    folder.mkdir()
    before = {"state": "running", "error": None, "pid": 1, "host": "node7", "started": "then"}
    (folder / "status.json").write_text(json.dumps(before))
    hold = (
        "import sys\nfrom pathlib import Path\nfrom semspec.storage.lock import FolderLock\n"
        f"FolderLock(Path({str(folder)!r}))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        console = quiet()
        carry_out([job], tmp_path, console)
        assert state_of(job, tmp_path) == ("running", "")
        assert "running" in said(console)
        work(job, tmp_path, console)  # had it not been held a moment ago
        assert status(tmp_path, job) == before
        other.kill()
        other.wait()
    assert state_of(job, tmp_path) == ("killed", "")  # nobody holds it, nothing says that it ended
    carry_out([job], tmp_path, quiet())
    assert state_of(job, tmp_path)[0] == "finished"


def test_a_killed_job_is_reported_with_its_process(tmp_path: Path) -> None:
    (job,) = plan(TINY)
    (tmp_path / job.name).mkdir()
    was: dict[str, Any] = {"state": "running", "error": None, "pid": 123, "host": "node7"}
    was |= {"started": "then", "done": 3}
    (tmp_path / job.name / "status.json").write_text(json.dumps(was))
    say(job, tmp_path, "killed", "its process ended")
    told = status(tmp_path, job)
    assert told["state"] == "killed" and told["error"] == "its process ended" and told["ended"]
    assert {k: told[k] for k in ("pid", "host", "started", "done")} == {
        "pid": 123, "host": "node7", "started": "then", "done": 3
    }  # fmt: skip


def test_a_running_status_without_its_lock_means_killed(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "running"}')
    lock = FolderLock(tmp_path)
    assert RunFolder(tmp_path).status["state"] == "running"
    lock.release()
    assert RunFolder(tmp_path).status["state"] == "killed"


def test_the_table_is_plain_lines_elsewhere_than_on_a_terminal(tmp_path: Path) -> None:
    jobs = plan([*TINY, "seed=0,1"])
    carry_out(jobs[:1], tmp_path, quiet())
    console = quiet()
    sweep.show(jobs, tmp_path, console)
    lines = [line.split("\t") for line in said(console).splitlines()]
    assert [line[0] for line in lines] == ["job", "seed=0", "seed=1"]
    assert [line[1] for line in lines] == ["state", "finished", "waiting"]
    assert len({len(line) for line in lines}) == 1 and lines[1][3].endswith("x")
    terminal = Screen(file=io.StringIO(), width=120, force_terminal=True)
    sweep.show(jobs, tmp_path, terminal)
    assert "speed-up [95 %]" in said(terminal) and "─" in said(terminal)


def test_launchers_take_their_own_options() -> None:
    assert options_of([])[0] == "basic"
    name, options = options_of(["hydra/launcher=ray", "hydra.launcher.num_gpus=1"])
    assert (name, options["num_gpus"], options["address"]) == ("ray", 1, None)
    name, options = options_of(
        ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu",
         "hydra.sweeper.max_batch_size=3"]
    )  # fmt: skip
    assert (options["partition"], options["at_a_time"]) == ("gpu", 3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hydra/launcher=submitit_lokal", "did you mean 'submitit_local'"),
        ("hydra.launcher.partitoin=x", "partitoin"),
        ("hydra.sweep.subdir=x", "means nothing in a sweep"),
    ],
)
def test_mistakes_with_launchers_end_in_one_line(given: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as told:
        options_of([given])
    assert "\n" not in str(told.value)


def test_a_missing_launcher_names_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "semspec\[submitit\]"'):
        options_of(["hydra/launcher=submitit_local"])


def test_slurm_on_a_machine_without_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = options_of(["hydra/launcher=submitit_slurm"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"submitit_slurm: .*srun"):
        carry_out(plan(TINY), tmp_path / "sweep", quiet(), name, options)


def test_a_job_on_this_machine_has_more_than_an_hour() -> None:
    assert options_of(["hydra/launcher=submitit_local"])[1]["timeout_min"] > 24 * 60
    given = ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"]
    assert options_of(given)[1]["timeout_min"] == 5


def test_a_job_that_slurm_has_forgotten_is_over_and_one_that_it_holds_is_not() -> None:
    listed = "7_0|RUNNING\n7_1|CANCELLED\n7_2|SUSPENDED\n7_3|PENDING\n9_0|FAILED\n"
    found = queued(listed, [f"7_{i}" for i in range(5)])
    assert [found[f"7_{i}"]["State"] for i in range(5)] == [
        "RUNNING", "CANCELLED", "RUNNING", "RUNNING", "GONE"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["audit", "calibrate", "calibrate_risk", "launch"])
def test_commands_that_make_one_thing_refuse_a_sweep(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"semspec.{name}").main(["-m", "seed=0,1"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "-m is for python -m semspec.run" in told


def test_somebody_elses_files_in_a_jobs_place_stay_as_they_are(tmp_path: Path) -> None:
    jobs = plan([*TINY, "seed=0,1"])
    theirs = tmp_path / jobs[0].name
    theirs.mkdir()
    for name in ("status.json", "rounds.jsonl", ERROR):
        (theirs / name).write_text('{"state": "running", "of": "another service"}')
    before = {file.name: file.read_bytes() for file in theirs.iterdir()}
    console = quiet()
    carry_out(jobs, tmp_path, console)
    assert {file.name: file.read_bytes() for file in theirs.iterdir()} == before
    state, why = state_of(jobs[0], tmp_path)
    assert state == "failed" and "no config.json of a run; choose another" in why
    assert why in said(console) and state_of(jobs[1], tmp_path)[0] == "finished"


def test_somebody_elses_sweep_json_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"chimneys": 4}')
    with pytest.raises(UserError, match=r"sweep\.json is not a sweep's; choose another sweep=DIR"):
        carry_out(plan(TINY), tmp_path, quiet())
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.json"]


def test_a_result_without_figures_is_made_again(tmp_path: Path) -> None:
    (job,) = plan(TINY)
    carry_out([job], tmp_path, quiet())
    result = tmp_path / job.name / "result.json"
    result.write_text("{}")
    assert state_of(job, tmp_path)[0] == "killed"
    carry_out([job], tmp_path, quiet())
    assert state_of(job, tmp_path)[0] == "finished"
    figures = json.loads(result.read_text())
    result.write_text(json.dumps(figures | {"pass_at_1": "high", "speedup_interval": 3}))
    row = sweep.row_of(job, tmp_path)  # computed from the lines again
    assert row[1] == "finished" and figures["problems"] == 1


def test_a_job_that_was_killed_behind_its_result_is_finished_by_the_next_start(tmp_path: Path) -> None:  # fmt: skip
    (job,) = plan(TINY)
    carry_out([job], tmp_path, quiet())
    folder = tmp_path / job.name
    told = json.loads((folder / "status.json").read_text())
    # as a kill leaves it that comes while status.json is written for the last time
    (folder / "status.json").write_text(json.dumps(told | {"state": "running", "done": 0}))
    (folder / ".status.json.tmp").write_text('{"state": "fini')
    (folder / "report.html").unlink()
    carry_out([job], tmp_path, quiet())
    now = json.loads((folder / "status.json").read_text())
    assert (now["state"], now["done"]) == ("finished", told["done"])
    assert (folder / "report.html").exists() and not (folder / ".status.json.tmp").exists()


@pytest.mark.deep
def test_passwords_of_servers_are_in_no_file_and_no_name(tmp_path: Path) -> None:
    urls = ("engine.target_url=http://me:s3cret@h1:1", "engine.target_url=http://me:s3cret@h2:1")
    jobs = [Job(name_of([url]), (*TINY, "engine=sglang", url)) for url in urls]
    assert len({job.name for job in jobs}) == 2
    carry_out(jobs, tmp_path, quiet())
    for path in tmp_path.rglob("*"):
        assert "s3cret" not in path.name
        assert path.is_dir() or b"s3cret" not in path.read_bytes(), path
    assert all("h1:1" in one or "h2:1" in one for one in (status(tmp_path, j)["overrides"][-1] for j in jobs))  # fmt: skip
