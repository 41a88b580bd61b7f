"""``part=`` is parsed, and a folder in parts refuses conflicting starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec.cli import train_probe
from semspec.errors import UserError
from semspec.jobs.job import Job, state_of
from semspec.jobs.stages import (
    Shard,
    check_barrier,
    check_division,
    run_in_shards,
    split,
    split_launcher,
    started,
)
from semspec.report.progress import Steps
from semspec.storage.files import read_json, write_json
from semspec.storage.lock import FolderInUseError, is_locked


def begin(root: Path, *shards: Shard) -> None:
    for shard in shards:
        shard.folder(root).mkdir()
        write_json(shard.folder(root) / "config.json", {})


def test_parts_are_read_wherever_they_stand() -> None:
    assert split(["a=1", "part=2/4", "b=2"]) == ([Shard(2, 4)], False, ["a=1", "b=2"])
    assert split(["part=3/4,1/4", "--multirun"]) == ([Shard(1, 4), Shard(3, 4)], True, [])
    assert split(["-m", "part=all/3"])[0] == [Shard(1, 3), Shard(2, 3), Shard(3, 3)]
    assert split(["-m", "part=1/3", "part=2/3"])[0] == [Shard(2, 3)]  # the last one wins
    assert split(["a=1"]) == ([], False, ["a=1"])


@pytest.mark.parametrize(
    "given", ["0/4", "5/4", "1/0", "all/0", "x", "", "1/2,1/3", "1/4,", "-1/4", "1.5/4", "1/4/4"]
)
def test_malformed_parts_are_refused(given: str) -> None:
    with pytest.raises(UserError, match=f"part={given}: "):
        split(["-m", f"part={given}"])


def test_several_parts_need_a_sweep_and_a_sweep_needs_parts() -> None:
    for one in (["part=1/2,2/2"], ["part=all/2"]):
        with pytest.raises(UserError, match="is several: add -m"):
            split(one)
    with pytest.raises(UserError, match="-m is here for part="):
        split(["-m", "seed=0,1"])


def test_other_options_have_one_value_each() -> None:
    given = ["domains=[residues,weekdays]", "hydra/launcher=ray", "hydra.launcher.num_cpus=2"]
    assert split_launcher(given) == (given[:1], given[1:])
    for swept in ("seed=0,1", "seed=range(0,3)", "split=glob(*)"):
        with pytest.raises(UserError, match="gives several values"):
            split_launcher([*given, swept])


@pytest.mark.parametrize("of", [1, 2, 5])
def test_every_group_is_in_one_part(of: int) -> None:
    for group in range(12):
        assert sum(part.has(group) for part in Shard(1, of).all()) == 1


def test_a_folder_is_divided_in_only_one_way(tmp_path: Path) -> None:
    check_division(Shard(1, 2), tmp_path / "not there")
    begin(tmp_path, Shard(2, 3))
    assert started(tmp_path) == [Shard(2, 3)]
    check_division(Shard(1, 3), tmp_path)
    with pytest.raises(UserError, match="in parts of 3"):
        check_division(Shard(1, 2), tmp_path)
    begin(tmp_path, Shard(1, 2))
    with pytest.raises(UserError, match="parts of 2 and of others"):
        started(tmp_path)


def test_a_folder_begun_by_one_process_is_not_divided(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    with pytest.raises(UserError, match="without part="):
        check_division(Shard(1, 2), tmp_path)


def test_parts_that_lack_a_stage_are_named(tmp_path: Path) -> None:
    begin(tmp_path, Shard(1, 3), Shard(3, 3))
    Shard(1, 3).finish(tmp_path, "chains", {"chains": 4})
    Shard(1, 3).finish(tmp_path, "samples", {"contexts": 2})
    assert Shard(1, 3).done(tmp_path) == {"chains": {"chains": 4}, "samples": {"contexts": 2}}
    with pytest.raises(UserError, match=r"the samples of 2 of 3 parts: .*part=2/3,3/3,"):
        check_barrier(started(tmp_path), tmp_path, "samples")


def test_a_part_is_held_and_says_how_it_ended(tmp_path: Path) -> None:
    part, about = Shard(1, 2), {"job": "part-1-of-2", "overrides": []}
    with part.hold(tmp_path, about) as folder:
        assert is_locked(folder)
        with pytest.raises(FolderInUseError), part.hold(tmp_path, about):
            raise AssertionError
        assert (read_json(folder / "status.json") or {})["state"] == "running"
    assert (read_json(folder / "status.json") or {})["state"] == "finished"
    with pytest.raises(UserError), part.hold(tmp_path, about):
        raise UserError("why")
    told = read_json(folder / "status.json") or {}
    assert (told["state"], told["error"], told["job"]) == ("failed", "why", "part-1-of-2")
    assert not is_locked(folder)


def test_a_part_that_ended_an_earlier_stage_waits_for_the_next(tmp_path: Path) -> None:
    part = Shard(1, 2)
    chains, samples = (
        Job(part.name, (), "semspec.cli.train_probe", s) for s in ("chains", "samples")
    )
    assert state_of(chains, tmp_path)[0] == "waiting"
    with part.hold(tmp_path, chains.about):
        part.finish(tmp_path, "chains", {"chains": 4})
    assert state_of(chains, tmp_path)[0] == "finished"
    assert state_of(samples, tmp_path)[0] == "waiting"


def test_a_sweep_over_other_options_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given in (["-m", "seed=0,1"], ["-m", "part=all/2", "seed=0,1"]):
        with pytest.raises(SystemExit) as ended:
            train_probe.main(given)
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "docs/scale-out.md" in told


class Counting:
    """Staged work without models: every stage counts its calls."""

    product = "counts"
    quiet = True
    stages = ("first", "second")

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.closed = folder, list[str](), 0

    def keep_options(self, folder: Path) -> None:
        write_json(folder / "config.json", {})

    def run(self, shard: Shard, stage: str, steps: Steps) -> dict[str, int]:
        self.calls.append(f"{stage} {shard}")
        return {"calls": len(self.calls)}

    def close(self) -> None:
        self.closed += 1


def test_no_shard_passes_a_barrier_before_all_have_reached_it(tmp_path: Path) -> None:
    work = Counting(tmp_path)
    for given in ("1/2", "1/2", "2/2", "1/2"):
        assert run_in_shards("none", lambda _: work, [f"part={given}"])
    assert work.calls == ["first 1/2", "first 2/2", "second 2/2", "second 1/2"]
    assert work.closed == 4
    assert not run_in_shards("none", lambda _: work, ["seed=1"])


def test_a_shards_status_has_no_password(tmp_path: Path) -> None:
    given = ["part=1/1", "engine.target_url=http://me:secret@host:1"]
    run_in_shards("none", lambda _: Counting(tmp_path), given)
    status = (Shard(1, 1).folder(tmp_path) / "status.json").read_text()
    assert "http://host:1" in status and "secret" not in status
