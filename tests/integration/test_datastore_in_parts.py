"""A datastore whose documents, states and keys are made in parts equals that of one process."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from semspec.cli.build_datastore import main
from semspec.jobs.stages import Shard, run_shard
from semspec.report.progress import Steps
from semspec.report.terminal import Screen
from semspec.training.datastores.build import make
from semspec.training.datastores.corpus import Documents
from semspec.training.datastores.settings import split_options
from semspec.training.datastores.stages import Reading
from tests.support.parts import contents

pytestmark = pytest.mark.deep

QUIET = Steps(Screen(file=io.StringIO()), quiet=True)
SMALL = ("quiet=true", "max_new_tokens=12", "batch=64", "problems=70", "domains=[residues]")
DENSE = ("kind=dense", "responses=as_is", "longest=24", "dims=8", *SMALL[:-2])


def by_hand(arguments: tuple[str, ...], folder: Path, part: Shard, until: str) -> None:
    options, config = split_options([*arguments, f"folder={folder}"])
    run_shard(Reading(config, options), part, until, {}, QUIET)


def alone(arguments: tuple[str, ...], folder: Path) -> None:
    options, config = split_options([*arguments, f"folder={folder}"])
    make(config, options, QUIET)


def swept(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["-m", *arguments])
    told = capsys.readouterr()
    assert ended.value.code == 0, told
    return told.out


@pytest.fixture
def texts(tmp_path: Path) -> str:
    """More than one group of texts as they are."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"text": "the {n} and {n + 1} of it"}}\n' for n in range(30)))
    return f"corpus={data}"


def test_answers_written_in_parts_are_those_of_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("kind=sparse", *SMALL)
    one, parts = tmp_path / "one", tmp_path / "parts"
    alone(arguments, one)
    swept(capsys, *arguments, "part=all/2", f"folder={parts}")
    assert len(list((parts / "documents").glob("group-*"))) == 2
    alone(arguments, parts)
    assert contents(parts) == contents(one)


@pytest.mark.parametrize("fit", [1_000_000, 60])
def test_states_and_keys_made_in_parts_are_those_of_one_process(
    tmp_path: Path,
    texts: str,
    fit: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # with a few states to fit, keys are of states that are read once more
    monkeypatch.setattr("semspec.training.datastores.corpus.AS_IS", 8)
    arguments = (*DENSE, texts, f"fit={fit}")
    one, parts = tmp_path / "one", tmp_path / "parts"
    alone(arguments, one)
    swept(capsys, *arguments, "part=all/3", f"folder={parts}")
    assert len(list(parts.glob("shard-*"))) == 4
    with pytest.MonkeyPatch.context() as nobody:  # the target is not asked again
        nobody.setattr("semspec.training.datastores.states.StateReader.of", None)
        alone(arguments, parts)
    assert contents(parts) == contents(one)


def test_a_killed_part_resumes_and_waits_for_the_others(
    tmp_path: Path, texts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("semspec.training.datastores.corpus.AS_IS", 4)
    arguments = (*DENSE, texts)
    one, parts = tmp_path / "one", tmp_path / "parts"
    alone(arguments, one)
    keep, kept = Documents.keep, list[int]()

    def torn(self: Documents, group: int, documents: object) -> None:
        if kept == [0]:
            raise KeyboardInterrupt
        keep(self, group, documents)  # type: ignore[arg-type]
        kept.append(group)

    monkeypatch.setattr(Documents, "keep", torn)
    with pytest.raises(KeyboardInterrupt):
        by_hand(arguments, parts, Shard(1, 2), "keys")
    kept[:] = [-1]
    by_hand(arguments, parts, Shard(1, 2), "keys")  # its documents, and no further
    assert kept[1:] == [2, 4, 6]
    assert list(Shard(1, 2).done(parts)) == ["documents"]
    with pytest.raises(SystemExit):
        main([*arguments, f"folder={parts}"])
    assert "lacks the keys of 2 of 2 parts: " in capsys.readouterr().err
    for part in (Shard(2, 2), Shard(1, 2), Shard(2, 2), Shard(1, 2)):
        by_hand(arguments, parts, part, "keys")
    alone(arguments, parts)
    assert contents(parts) == contents(one)


def test_a_build_without_a_model_refuses_parts(
    tmp_path: Path, texts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["part=1/2"], ["-m", "part=all/2"]):
        with pytest.raises(SystemExit):
            main(["kind=sparse", "responses=as_is", texts, f"folder={tmp_path / 'w'}", *more])
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "needs no model" in told
    assert not (tmp_path / "w").exists()
