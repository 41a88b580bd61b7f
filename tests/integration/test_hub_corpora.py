"""Commands read data sets in a public data set's columns from the Hub, here a loopback server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.cli import build_datastore, calibrate
from semspec.models.text import Text
from semspec.training.probes.stages import keep_options, probe_facts
from tests.support.benchmark_rows import write_rows
from tests.support.hub import hub_for, requests
from tests.support.hub_server import HubServer
from tests.support.pair import DRAFT, TARGET
from tests.support.probes import configuration

pytestmark = pytest.mark.deep

CHATS = "alice/chats"
CHAINS = "alice/chains"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        yield server


def put(hub: HubServer, name: str, folder: Path, rows: list[dict[str, Any]]) -> str:
    """A data set as its owner left it: one parquet file, and what nobody needs."""
    data = write_rows(folder / "rows.parquet", rows).read_bytes()
    files = {"data/train-00000-of-00001.parquet": data, "README.md": b"-", "load.py": b"1 / 0"}
    return hub.make(f"datasets/{name}", files)


def chats(word: str) -> list[dict[str, Any]]:
    """UltraChat's columns."""
    turns = [("user", "One?"), ("assistant", f"{word} two three"), ("user", "And?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    return [{"prompt": "One?", "prompt_id": str(n), "messages": messages} for n in range(3)]


def chains(word: str) -> list[dict[str, Any]]:
    """s1K's columns."""
    thinking = "First add one.\n\nThen add two.\n\nThat is three."
    return [
        {
            "question": f"{word} {n}?",
            "cot_type": "math",
            "source_type": "made/up",
            "thinking_trajectories": [thinking],
        }
        for n in range(2)
    ]


def test_a_datastore_is_built_from_a_data_set_at_a_commit(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(hub, CHATS, tmp_path, chats("zero"))
    new = put(hub, CHATS, tmp_path, chats("four"))
    text = Text(str(TARGET))

    def built(into: str, *more: str) -> SparseDatastore:
        words = ("kind=sparse", "responses=as_is", f"corpus={CHATS}", "quiet=true", *more)
        build_datastore.main([*words, f"folder={tmp_path / into}"])
        return SparseDatastore.load(tmp_path / into / "datastore")

    pinned = built("pinned", f"revision={old}")
    assert not [line for line in requests(hub) if "README" in line or "load.py" in line]
    newest = built("newest")
    for made, commit, word in ((pinned, old, "zero"), (newest, new, "four")):
        assert made.config["data"]["revision"] == commit
        (match,) = made.open().longest(text.encode(f"{word} two three"), 64)
        assert (match.length, match.count) == (len(text.encode(f"{word} two three")), 3)
    put(hub, CHATS, tmp_path, chats("five"))  # a branch moves: what was begun goes on as it was
    (tmp_path / "newest" / "documents" / "done.json").unlink()
    assert built("newest").config == newest.config
    requests(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert built("again", f"revision={old}").config == pinned.config
    assert requests(hub) == []


def test_a_wrong_data_set_is_refused_in_one_line(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(hub, CHATS, tmp_path, [{"nothing": 1}])
    for name, says in (
        ("alice/none", "is not on the Hub"),
        (CHATS, f"no row of {CHATS} has text"),
    ):
        with pytest.raises(SystemExit):
            build_datastore.main(
                ["kind=sparse", "responses=as_is", f"corpus={name}", f"folder={tmp_path / name}"]
            )
        told = capsys.readouterr().err
        assert says in told
        assert told.count("semspec: ") == 1


def test_a_probes_samples_keep_the_commit_of_their_data_set(hub: HubServer, tmp_path: Path) -> None:
    """train_probe source=hub: the rows that a branch led to first stay those of the folder."""
    old = put(hub, CHAINS, tmp_path, chains("old"))
    folder = tmp_path / "probe"
    folder.mkdir()
    named = ("source=hub", f"data={CHAINS}", "cluster=exact")
    for _ in range(2):
        config = configuration(folder, *named)
        keep_options(folder, config, probe_facts(config))
        assert config.revision == old
        assert json.loads((folder / "config.json").read_text())["revision"] == old
        put(hub, CHAINS, tmp_path, chains("new"))


def test_constants_are_calibrated_on_a_data_sets_chains(hub: HubServer, tmp_path: Path) -> None:
    sha = put(hub, CHAINS, tmp_path, chains("what"))
    words = ("model.path=embedded/tiny-draft", "source=hub", f"data={CHAINS}")
    words += ("problems=2", "positions=2", "levels=1", "correction=none")
    calibrate.main([*words, f"folder={tmp_path / 'work'}", f"out={tmp_path / 'arc'}"])
    told = ArcCalibration.load(tmp_path / "arc")
    assert (told.config["data"]["data"], told.config["data"]["revision"]) == (CHAINS, sha)
    assert len(told.config["prompts"]) == 2
    assert len(told.tensors["evidence"]) > 0
    assert told.config["model"]["tokenizer"] == Text(str(DRAFT)).fingerprint
