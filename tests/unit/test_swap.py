"""Saving an artifact leaves the old or the new version after any kill, and never replaces foreign folders."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from semspec.artifacts import base, inspection
from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.artifacts.judge_head import JudgeHead
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.cli.pull import pull
from semspec.errors import UserError
from semspec.storage import manifests, swap
from semspec.storage.packaged import beside_package

SWAP = frozenset({"swap.py"})
ALL = SWAP | {"manifests.py", "base.py", "files.py"}


def head(bias: float) -> JudgeHead:
    made = JudgeHead.example()
    made.tensors["bias"] = torch.tensor([bias])
    return made


def killed_at(number: int, work: Callable[[], object], files: Collection[str] = ALL) -> bool:
    """Return True if a process that does the work was killed before it ran that line of these files."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).name not in files:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        work()
        sys.settrace(None)
        os._exit(0)
    finally:
        os._exit(1)


def found(folder: Path) -> float | None:
    """The bias of the head that a load finds; None where there is no folder."""
    try:
        return float(JudgeHead.load(folder).tensors["bias"])
    except UserError as error:
        told = str(error)
    assert "no artifact folder" in told, told
    return None


@pytest.mark.parametrize(("files", "stride"), [(SWAP, 1), (ALL, 17)], ids=["swap", "all"])
@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.deep
def test_a_save_that_is_killed_before_any_line_leaves_old_or_new(
    exchange: bool,
    files: Collection[str],
    stride: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "it"
    if not exchange:  # as on file systems without RENAME_EXCHANGE
        monkeypatch.setattr(swap, "_EXCHANGE", 1 << 30)
    head(1.0).save(folder)
    seen, number = set[float | None](), 0
    saved = 1.0
    while True:
        killed = killed_at(number, partial(head(saved + 1).save, folder), files)
        now = found(folder)
        assert now in (saved, saved + 1), f"killed before line {number}: {now}"
        seen.add((now == saved + 1) if killed else None)
        if not killed:
            break
        saved = float(now)  # what a kill left in the way does not stop the next save
        number += stride
    assert number > 50
    assert seen == {True, False, None}
    assert now == saved + 1
    inspection.check(folder)
    assert [f.name for f in tmp_path.iterdir()] == ["it"]


def test_a_first_save_that_is_killed_leaves_nothing_or_all(tmp_path: Path) -> None:
    folder, number = tmp_path / "it", 0
    while killed_at(number, lambda: head(1.0).save(folder)):
        assert found(folder) in (None, 1.0), f"killed before line {number}"
        shutil.rmtree(folder, ignore_errors=True)
        number += 7
    assert found(folder) == 1.0


def test_large_parts_survive_a_kill_too(tmp_path: Path) -> None:
    folder, number = tmp_path / "it", 0
    SparseDatastore.example().save(folder)
    while killed_at(number, lambda: SparseDatastore.example().save(folder)):
        assert SparseDatastore.load(folder).open().longest([1, 2], 8)
        number += 23


def model(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"weights")


def their_manifest(folder: Path) -> None:
    model(folder)
    (folder / "manifest.json").write_text('{"files": ["model.safetensors"], "name": "mine"}')


def damaged(folder: Path) -> None:
    head(1.0).save(folder)
    (folder / "manifest.json").write_text("{")


def another_kind(folder: Path) -> None:
    Eagle3Head.example().save(folder)


def with_notes(folder: Path) -> None:
    head(1.0).save(folder)
    (folder / "notes.txt").write_text("mine")


def with_folder(folder: Path) -> None:
    head(1.0).save(folder)
    (folder / "notes").mkdir()


def file(folder: Path) -> None:
    folder.write_text("mine")


def staging_is_taken(folder: Path) -> None:
    folder.with_name(".it.tmp").mkdir()
    (folder.with_name(".it.tmp") / "mine").write_text("mine")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (model, "semspec did not write"),
        (their_manifest, "semspec did not write"),
        (damaged, "is damaged"),
        (another_kind, "contains a eagle3_head, not a judge_head"),
        (with_notes, "'notes.txt', which is not part of its judge_head"),
        (with_folder, "'notes', which is not part of its judge_head"),
        (file, "is a file"),
        (staging_is_taken, "is in the way"),
    ],
)
def test_only_an_artifact_of_the_same_kind_is_replaced(
    make: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    make(tmp_path / "it")
    before = {f: f.read_bytes() for f in sorted(tmp_path.rglob("*")) if f.is_file()}
    with pytest.raises(UserError, match=says) as told:
        head(2.0).save(tmp_path / "it")
    assert "\n" not in str(told.value)
    assert {f: f.read_bytes() for f in sorted(tmp_path.rglob("*")) if f.is_file()} == before


def test_our_own_artifact_is_replaced_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for bias in (1.0, 2.0):
        head(bias).save(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    head(3.0).save(tmp_path / "link")
    assert found(tmp_path / "empty") == 3.0
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(UserError, match="choose another folder"):
        head(1.0).save(Path("/"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match=r"symbolic links|is a file"):
        head(1.0).save(tmp_path / "loop")


def test_a_pull_leaves_a_foreign_folder_beside_its_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "find", lambda *_, **__: beside_package("hub_artifacts") / "tiny-nli")
    staging_is_taken(tmp_path / "it")
    with pytest.raises(UserError, match="is in the way"):
        pull("me/it", tmp_path / "it")
    shutil.rmtree(tmp_path / ".it.tmp")
    pull("me/it", tmp_path / "it")
    assert [f.name for f in tmp_path.iterdir()] == ["it"]
    assert manifests.read(tmp_path / "it") is not None
