"""A probe's samples made in parts by a launcher equal those of one process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semspec.cli.train_probe import main
from semspec.errors import UserError
from semspec.jobs.stages import Shard, run_shard
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.storage.files import read_json
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import make, sampled
from semspec.training.probes.shards import GroupWriter
from semspec.training.probes.stages import Sampling
from tests.support.parts import contents
from tests.support.probes import configuration, options
from tests.support.processes import finished

pytestmark = pytest.mark.deep

QUIET = Steps(Screen(file=io.StringIO()), quiet=True)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "semspec.train_probe", *arguments]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that one process makes."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    make(configuration(folder), QUIET)
    return folder


def by_hand(folder: Path, part: Shard, *more: str, until: str = "samples") -> None:
    run_shard(Sampling(configuration(folder, *more)), part, until, {}, QUIET)


def test_parts_run_by_the_launcher_equal_one_process(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main([*options(folder), "-m", "part=all/2"])
    assert ended.value.code == 0, capsys.readouterr()
    make(configuration(folder), QUIET)
    assert contents(folder) == contents(alone)

    before = {f: f.stat().st_mtime_ns for f in (folder / "samples").iterdir()}
    with pytest.raises(SystemExit) as ended:  # finished jobs are left alone
        main([*options(folder), "-m", "part=all/2"])
    assert ended.value.code == 0
    assert before == {f: f.stat().st_mtime_ns for f in (folder / "samples").iterdir()}


def kill_at_work(process: subprocess.Popen[str], folder: Path) -> None:
    """Kills the process of a part, once it says that it is at work."""
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        told = read_json(folder / "status.json") or {}
        if told.get("state") == "running":
            os.kill(told["pid"], signal.SIGKILL)
            return
        time.sleep(0.005)
    raise AssertionError(process.communicate())


def test_a_killed_part_ends_alone_and_the_same_command_resumes(alone: Path, tmp_path: Path) -> None:
    folder, parts = tmp_path / "run", Shard(1, 2).all()
    by_hand(folder, parts[0], until="chains")
    launched = command(*options(folder), "-m", "part=all/2", "hydra/launcher=submitit_local")
    process = subprocess.Popen(
        launched,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    kill_at_work(process, parts[1].folder(folder))
    shown, error = process.communicate(timeout=400)
    assert process.returncode == 1, shown + error
    assert "1 of 2 jobs are not finished: part-2-of-2 (killed)" in error
    lacking = finished(command(*options(folder)), code=2)
    assert lacking.stderr.count("\n") == 1 and "part=1/2,2/2," in lacking.stderr
    finished(launched)
    make(configuration(folder), QUIET)
    assert contents(folder) == contents(alone)


def test_a_part_resumes_after_its_last_complete_group(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    for part in Shard(1, 2).all():
        by_hand(folder, part, until="chains")
    commit, groups = GroupWriter.commit, list[str]()

    def torn(writer: GroupWriter) -> None:
        if groups == ["group-00000"]:
            raise KeyboardInterrupt
        commit(writer)
        groups.append(writer.name)

    monkeypatch.setattr(GroupWriter, "commit", torn)
    with pytest.raises(KeyboardInterrupt):
        by_hand(folder, Shard(1, 2))
    assert "samples" not in Shard(1, 2).done(folder)
    groups[:] = ["begun again"]
    for part in Shard(1, 2).all():
        by_hand(folder, part)
    assert groups[1:] == ["group-00002", "group-00001"]
    make(configuration(folder), QUIET)
    assert contents(folder) == contents(alone)


def test_parts_wait_for_each_others_chains(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    by_hand(folder, Shard(1, 2))
    by_hand(folder, Shard(1, 2))
    assert list(Shard(1, 2).done(folder)) == ["chains"]
    assert not (folder / "samples").exists()
    by_hand(folder, Shard(2, 2))  # the last one needs not wait
    assert list(Shard(2, 2).done(folder)) == ["chains", "samples"]
    with pytest.raises(UserError, match="the samples of 1 of 2 parts"):
        sampled(configuration(folder), folder, QUIET)
    with pytest.raises(UserError, match="other options"):
        by_hand(folder, Shard(1, 2), "seed=1")


def test_chains_that_no_model_writes_are_read_by_every_part(tmp_path: Path) -> None:
    more = ("chains=world", "problems=7", "batch=2", "contexts=9", "per_problem=0")
    one, parts = tmp_path / "one", tmp_path / "parts"
    one.mkdir()
    sampled(build(options(one, *more)), one, QUIET)
    for part in Shard(1, 6).all():  # more parts than there is work for
        by_hand(parts, part, *more)
        assert list(part.done(parts)) == ["samples"]
    sampled(build(options(parts, *more)), parts, QUIET)
    assert contents(parts) == contents(one)
