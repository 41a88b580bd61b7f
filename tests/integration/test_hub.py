"""Publishing and loading with the real Hub client, against a loopback server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, scan_cache_dir

from semspec.artifacts import base, inspection, upload
from semspec.artifacts.probe import Probe
from semspec.cli import artifacts as artifacts_command
from semspec.cli import publish as publish_command
from semspec.cli import pull as pull_command
from semspec.cli.publish import publish
from semspec.errors import UserError
from semspec.models.location import KnownModels, ModelConfig, read_facts
from semspec.models.text import Text
from semspec.probes import index as _index
from semspec.protocols import ProbeSource
from semspec.runner import execute
from semspec.storage.packaged import beside_package
from semspec.training.probes.sources import commit_of, questions
from tests.support.binding import run_of
from tests.support.hub import (
    ALICE,
    BOB,
    child_environment,
    files_of,
    hub_for,
    requests,
    snapshot_files,
)
from tests.support.hub_server import HubServer
from tests.support.pair import DRAFT, TARGET, configuration
from tests.support.probes import configuration as probe_options

NAME = "alice/probe"
FINGERPRINT = Text(str(TARGET)).fingerprint


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return files_of(Probe.example(), tmp_path / "probe")


@pytest.fixture
def commit(hub: HubServer, files: dict[str, bytes]) -> str:
    """alice/probe is there, as if published by somebody."""
    return hub.make(f"models/{NAME}", files)


def refused(name: str = NAME, **options: object) -> str:
    with pytest.raises(UserError) as told:
        Probe.from_pretrained(name, **options)  # type: ignore[arg-type]
    line = str(told.value)
    assert "\n" not in line
    assert "hf_" not in line
    return line


# ---- round trips ------------------------------------------------------------------------------


def test_the_api_replaces_a_repository_in_one_commit(hub: HubServer, tmp_path: Path) -> None:
    probe = Probe.example()
    probe.texts["old.txt"] = "to be removed"
    first = probe.push_to_hub(NAME, token=ALICE, private=True)
    repo = hub.repos[f"models/{NAME}"]
    assert repo.private
    assert set(repo.commits[first]) == {
        *("README.md", "config.json", "manifest.json", "model.safetensors", "old.txt"),
        ".gitattributes",
    }
    assert probe.push_to_hub(NAME, token=ALICE) == first  # nothing changed: no commit
    del probe.texts["old.txt"]
    probe.tensors["mean"] += 1
    probe.save_pretrained(tmp_path / "it", push_to_hub=True, repo_id=NAME, token=ALICE)
    second = repo.heads["main"]
    assert len(repo.commits) == 3  # one made with the repository, one each
    assert "old.txt" not in repo.commits[second]
    mean = Probe.example().tensors["mean"]
    for revision, wanted in ((first, mean), (second, mean + 1)):
        loaded = Probe.from_pretrained(NAME, revision=revision, token=ALICE)
        assert loaded.tensors["mean"].equal(wanted)


def test_a_name_without_an_owner_is_the_users_own(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe.example()
    with pytest.raises(UserError, match="whose mine is it: log in with 'hf auth login', or give"):
        probe.push_to_hub("mine")
    assert not hub.repos
    sha = probe.push_to_hub("mine", token=ALICE)
    monkeypatch.setenv("HF_TOKEN", BOB)
    probe.save_pretrained(tmp_path / "his", push_to_hub=True)
    assert {name: repo.owner for name, repo in hub.repos.items()} == {
        "models/alice/mine": "alice",
        "models/bob/his": "bob",
    }
    assert Probe.load(f"alice/mine@{sha}").name == sha
    with pytest.raises(UserError, match="401") as told:
        probe.push_to_hub("mine", token="hf_nobody-at-all-has-this")
    assert "hf_" not in str(told.value)


# ---- what is asked of the Hub -----------------------------------------------------------------


def test_a_pinned_load_asks_the_hub_once(hub: HubServer, commit: str) -> None:
    Probe.load(f"{NAME}@{commit}")
    asked = requests(hub)
    assert {"config.json", "manifest.json", "model.safetensors"} == {
        a.split()[1].rpartition("/")[2] for a in asked if "/resolve/" in a
    }  # the card is not needed
    Probe.load(NAME, commit)
    assert requests(hub) == []
    Probe.load(NAME)  # a branch may have moved: one question, no download
    assert [a.partition("?")[0] for a in requests(hub)] == [f"GET /api/models/{NAME}"]


def test_offline_loads_use_earlier_downloads(
    hub: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Probe.load(NAME).name == commit
    requests(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Probe.load(NAME).name == commit
    assert Probe.load(NAME, "main").name == commit
    line = refused("alice/other")
    assert "alice/other is not downloaded and HF_HUB_OFFLINE is set: run 'hf download" in line
    line = refused(revision="v9")
    assert "at revision v9 is not downloaded" in line
    assert f"run 'hf download --revision v9 {NAME}'" in line
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert Probe.from_pretrained(NAME, local_files_only=True).name == commit
    assert requests(hub) == []


def test_without_the_hub_only_earlier_downloads_load(
    hub: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Probe.load(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert Probe.load(NAME).name == commit
    assert "the Hub cannot be reached" in refused("alice/other")


@pytest.mark.parametrize("by", ["us", "others"])
def test_a_partial_snapshot_is_noticed(
    by: str, hub: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "us":
        folder = base.find(NAME)
        (folder / "model.safetensors").unlink()
    else:  # somebody's client fetched two of the files
        for name in ("config.json", "manifest.json"):
            hf_hub_download(NAME, name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "in part only (model.safetensors missing)" in refused()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert Probe.load(NAME).name == commit
    assert not scan_cache_dir(constants.HF_HUB_CACHE).warnings


# ---- what can go wrong ------------------------------------------------------------------------


def test_unknown_repositories_revisions_and_files_are_refused(
    hub: HubServer, commit: str, files: dict[str, bytes]
) -> None:
    assert "alice/none is not on the Hub" in refused("alice/none")
    assert "alice/none is not on the Hub" in refused("alice/none", token=ALICE)
    assert f"{NAME} at revision v9 is not on the Hub" in refused(revision="v9")
    assert "at revision " + "0" * 40 in refused(revision="0" * 40)
    assert "is no revision" in refused(revision="../../x")
    assert "neither a folder nor a Hub repository" in refused("alice/pro be")
    hub.make("models/alice/half", {n: d for n, d in files.items() if n != "model.safetensors"})
    assert "model.safetensors is missing" in refused("alice/half")
    hub.make("models/alice/empty", {".gitattributes": b""})
    assert "holds no artifact" in refused("alice/empty")


def test_private_and_gated_repositories_name_the_way_in(
    hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.make("models/alice/secret", files, private=True)
    hub.make("models/alice/gated", files, gated=True)
    for token in (None, BOB):
        assert "(a private repository needs 'hf auth login')" in refused(
            "alice/secret", token=token
        )
        assert "alice/gated is gated: accept its terms" in refused("alice/gated", token=token)
    for name in ("alice/secret", "alice/gated"):
        assert Probe.from_pretrained(name, token=ALICE).kind == "probe"
    assert "401" in refused("alice/gated", token="hf_nobody-at-all-has-this", force_download=True)


@pytest.mark.parametrize("status", ["500", "503"])
@pytest.mark.parametrize("at", ["GET /api/", "(HEAD|GET) .*/resolve/.*config", "GET /cdn/"])
def test_a_server_error_in_the_middle_is_one_line_and_a_retry_works(
    status: str, at: str, hub: HubServer, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client's pauses between its trials
    hub.faults.append((at, status, 50))
    assert f"could not get {NAME}" in refused()
    hub.faults.clear()
    assert Probe.load(NAME).name == commit


def test_a_truncated_body_is_refused(hub: HubServer, commit: str) -> None:
    hub.faults.append(("GET /cdn/", "short", 50))
    assert "could not get" in refused()
    hub.faults[:] = [("GET /cdn/", "cut", 1)]  # the connection ends: the client takes it up again
    assert Probe.load(NAME).name == commit


def test_a_flipped_byte_is_found(hub: HubServer, commit: str) -> None:
    hub.faults.append(("GET /cdn/", "flip", 2))
    line = refused()
    assert "model.safetensors of alice/probe was changed on its way" in line
    hub.faults[:] = [("GET /cdn/", "flip", 1)]  # fetched once more
    folder = base.find(NAME)
    path = (folder / "model.safetensors").resolve()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)  # on this disk, later
    assert Probe.load(f"{NAME}@{commit}").name == commit
    assert path.read_bytes() != bytes(data)


def test_concurrent_loads_give_the_same_probe(hub: HubServer, commit: str) -> None:
    found: list[object] = []

    def load() -> None:
        try:
            found.append(Probe.load(NAME).tensors["mean"].tolist())
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [Probe.example().tensors["mean"].tolist()] * 8


@pytest.mark.parametrize(
    "at", ["POST .*preupload", "POST .*/batch", "PUT /lfs/", "POST .*/commit/"]
)
def test_an_interrupted_upload_leaves_the_old_revision(
    at: str, hub: HubServer, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    probe = Probe.example()
    probe.tensors["mean"] += 1
    hub.faults.append((at, "500", 50))
    with pytest.raises(UserError, match="what was there is as it was") as told:
        probe.push_to_hub(NAME, token=ALICE)
    assert ALICE not in str(told.value)
    assert hub.repos[f"models/{NAME}"].heads["main"] == commit
    assert Probe.load(NAME).tensors["mean"].equal(Probe.example().tensors["mean"])
    hub.faults.clear()
    new = probe.push_to_hub(NAME, token=ALICE)
    assert Probe.load(NAME).name == new


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("POST .*/tag/", r"the tag v1 failed \("),
        ("GET /api/.*/revision/", r"looking at what arrived failed \("),
    ],
)
def test_a_failure_after_the_commit_says_that_it_is_published(
    at: str, says: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    folder = tmp_path / "probe"
    Probe.example().save(folder)
    hub.faults.append((at, "500", 50))
    with pytest.raises(UserError, match=says) as told:
        publish(folder, NAME, tag="v1", token=ALICE)
    repo = hub.repos[f"models/{NAME}"]
    sha = repo.heads["main"]
    line = str(told.value)
    assert line.startswith(f"{NAME}@{sha} is published, but ") and "as it was" not in line
    assert "hf_" not in line and "\n" not in line
    hub.faults.clear()
    for _ in range(2):  # the same command again, without update=true; then nothing is left to do
        assert publish(folder, NAME, tag="v1", token=ALICE) == sha
        assert repo.tags == {"v1": sha} and repo.heads["main"] == sha
    folder_of_another = tmp_path / "another"
    other = Probe.example()
    other.tensors["mean"] += 1
    other.save(folder_of_another)
    with pytest.raises(UserError, match="add update=true"):
        publish(folder_of_another, NAME, token=ALICE)


def test_somebody_elses_commit_is_not_undone(
    hub: HubServer, commit: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = upload._head

    def late(*arguments: object) -> object:
        head = look(*arguments)  # type: ignore[arg-type]
        hub.make(f"models/{NAME}", files | {"README.md": b"theirs"})
        return head

    monkeypatch.setattr(upload, "_head", late)
    probe = Probe.example()
    probe.tensors["mean"] += 1
    with pytest.raises(UserError, match="changed by somebody else meanwhile"):
        probe.push_to_hub(NAME, token=ALICE)


def test_publishing_needs_rights_an_intact_folder_and_consent(
    hub: HubServer, commit: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "probe"
    (folder / "README.md").write_bytes(files["README.md"] + b"\nMore.\n")
    with pytest.raises(UserError, match="not as its manifest says"):
        publish(folder, NAME, token=ALICE, update=True)
    inspection.seal(folder)
    for options, says in (
        ({"token": ALICE}, "holds 4 files: add update=true"),
        ({"token": ALICE, "update": True, "private": True}, "is public: make it private"),
        ({"token": BOB, "update": True}, "no right to write to alice/probe"),
        ({"token": "hf_nobody-at-all-has-this", "update": True}, "no right to write"),
    ):
        with pytest.raises(UserError, match=says) as told:
            publish(folder, NAME, **options)  # type: ignore[arg-type]
        assert "hf_" not in str(told.value)
    assert hub.repos[f"models/{NAME}"].heads["main"] == commit
    with pytest.raises(UserError, match="no right"):
        publish(folder, "bob/probe", token=ALICE)
    hub.repos[f"models/{NAME}"].tags["v1"] = commit
    with pytest.raises(UserError, match="has a tag v1"):
        publish(folder, NAME, token=ALICE, update=True, tag="v1")


# ---- hostile repositories ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../../../evil.json", "/tmp/evil.json", "a/../../evil.json", "..\\evil.json", "e\nvil.json"],
)
def test_no_file_is_written_outside_the_folder(
    name: str, hub: HubServer, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.make("models/eve/probe", files | {name: b"{}"})
    before = set(tmp_path.parent.rglob("*"))
    assert "no name of a file" in refused("eve/probe")
    assert set(tmp_path.parent.rglob("*")) == before
    assert not Path("/tmp/evil.json").exists()


@pytest.mark.parametrize("name", ["weights.pt", "pytorch_model.bin", "a.pkl", "modeling.py", "x/y"])
def test_files_that_could_run_code_are_refused_before_they_are_fetched(
    name: str, hub: HubServer, files: dict[str, bytes]
) -> None:
    sha = hub.make("models/eve/probe", files | {name: b"\x80\x04K\x01."})
    assert f"holds {name}" in refused("eve/probe")
    assert f"holds {name}" in refused("eve/probe", revision=sha)
    assert not [a for a in requests(hub) if "/resolve/" in a]


# ---- models -----------------------------------------------------------------------------------


def test_a_run_is_not_resumed_when_its_branch_has_moved(hub: HubServer, tmp_path: Path) -> None:
    there = snapshot_files(TARGET)
    del there["manifest.json"]  # it would refuse a changed model by itself
    first = hub.make("models/alice/target", there)
    given = ("draft=prompt_lookup", "accept=greedy", "split=token", "temperature=0", "quiet=true")
    sizes = ("problems=2", "max_new_tokens=8", "model.path=alice/target")
    config, folder = configuration(*given, *sizes), tmp_path / "run"
    execute(config, {"any": 1}, folder)
    (folder / "result.json").unlink()
    lines = (folder / "problems.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "problems.jsonl").write_bytes(lines[0])
    second = hub.make("models/alice/target", there | {"generation_config.json": b"{}"})
    with pytest.raises(UserError) as told:
        execute(config, {"any": 1}, folder)
    line = str(told.value)
    assert "another alice/target: it was commit " in line and "\n" not in line
    assert first[:20] in line and second[:20] in line
    assert (folder / "problems.jsonl").read_bytes() == lines[0]


def test_models_load_and_fail_through_the_same_checks(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    there = snapshot_files(DRAFT) | {"pytorch_model.bin": b"never fetched", "x/y.json": b"{}"}
    sha = hub.make("models/alice/draft", there)
    told = read_facts(ModelConfig(path="alice/draft"), "hash")
    assert (told.name, told.revision, told.width) == ("alice/draft", sha, 128)
    fetched = {a.partition("/resolve/")[2] for a in requests(hub) if "/resolve/" in a}
    assert not [f for f in fetched if "bin" in f or "x/y" in f or "README" in f]
    assert not [f for f in fetched if "safetensors" in f], "the facts need no weights from there"
    pinned = ModelConfig(path="alice/draft", revision=sha)
    assert pinned.fetch().name == sha
    assert [a for a in requests(hub) if "/resolve/" in a and "safetensors" in a]
    assert pinned.fetch().name == sha
    assert requests(hub) == []
    at = ModelConfig(path=f"alice/draft@{sha}")
    assert at == pinned and at.fetch().name == sha
    with pytest.raises(UserError, match="do not agree: give one of them"):
        ModelConfig(path=f"alice/draft@{sha}", revision="main")

    def line(path: str, revision: str | None = None) -> str:
        with pytest.raises(UserError) as error:
            ModelConfig(path=path, revision=revision).fetch()
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "check model.path and its revision" in line("alice/none")
    assert "at revision v9 is not on the Hub" in line("alice/draft", "v9")
    hub.make("models/alice/gated", there, gated=True)
    assert "is gated: accept its terms on the Hub" in line("alice/gated")
    hub.make("models/alice/new", there)
    for status in ("500", "503"):
        hub.faults[:] = [("GET", status, 50)]
        told_line = line("alice/new")
        assert status in told_line
        assert "or point model.path at a local folder" in told_line


def test_a_rule_takes_its_probe_from_the_hub(hub: HubServer) -> None:
    shipped = beside_package("hub_artifacts") / "probe-tiny-target-paper"
    sha = hub.make("models/alice/tiny-probe", snapshot_files(shipped))
    model = read_facts(ModelConfig(path="embedded/tiny-target"), FINGERPRINT)
    rule = configuration("accept=semantic").accept
    for given in (f"alice/tiny-probe@{sha}", "alice/tiny-probe"):
        named = replace(rule, target_probe=given)
        probe = named.load("target", run_of({"target": model}, "paragraph", 0.6))
        assert probe.tensors["mean"].equal(Probe.load(shipped).tensors["mean"])


def test_a_rule_finds_its_probe_on_the_hub_by_the_index(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody names a probe: the model's name does, by a line of conf/probes.yaml that pins a commit."""
    shipped = Probe.load(beside_package("hub_artifacts") / "probe-tiny-target-plus")
    sha = shipped.push_to_hub("alice/x", token=ALICE)
    newer = Probe.load(beside_package("hub_artifacts") / "probe-tiny-target-plus")
    newer.tensors["mean"] += 1
    newer.push_to_hub("alice/x", token=ALICE)  # what is pinned stays what it is
    (tmp_path / "conf").mkdir()
    index = tmp_path / "conf" / "probes.yaml"
    features = _index.feature_set(shipped.features, shipped.layers)
    line = _index.line(shipped.config, features, "alice/x", sha)
    assert f"path: alice/x, revision: {sha}" in line
    index.write_text(line + "\n")
    monkeypatch.setattr(_index, "beside_package", lambda name: tmp_path / name)
    requests(hub)

    rule = configuration("accept=semantic_plus").accept
    assert rule.target_probe is None
    known = KnownModels({"target": (ModelConfig(path="embedded/tiny-target"), FINGERPRINT)})
    assert rule.probe_sources(run_of(known, "paragraph")) == {"target": ProbeSource("alice/x", sha)}
    probe = rule.bind(run_of(known, "paragraph", 0.6)).target
    assert probe.tensors["mean"].equal(shipped.tensors["mean"])
    assert all(f"/resolve/{sha}/" in a for a in requests(hub) if "/resolve/" in a)
    rule.bind(run_of(known, "paragraph", 0.6))
    assert requests(hub) == []  # pinned: nothing is asked again
    index.write_text(line.replace(sha, "f" * 40) + "\n")
    with pytest.raises(UserError, match="alice/x at revision ffff"):
        rule.bind(run_of(known, "paragraph", 0.6))


# ---- data sets --------------------------------------------------------------------------------


def test_data_sets_go_through_the_same_checks(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(word: str) -> bytes:
        lines = [{"question": f"{word} {i}?", "thinking": "One.\n\nTwo."} for i in range(6)]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    def read(*more: str) -> set[str]:
        named = ("source=hub", "data=alice/chains", "cluster=exact", *more)
        return {q.question.split()[0] for q in questions(probe_options(tmp_path, *named))}

    old = hub.make("datasets/alice/chains", {"data/train.jsonl": rows("old"), "README.md": b"-"})
    assert read() == {"old"}
    requests(hub)
    assert read(f"revision={old}") == {"old"}
    assert requests(hub) == []
    new = hub.make("datasets/alice/chains", {"data/train.jsonl": rows("new")})
    assert read() == {"new"}
    assert read(f"revision={old}") == {"old"}
    options = probe_options(tmp_path, "source=hub", "data=alice/chains", "cluster=exact")
    assert commit_of(options) == new
    with pytest.raises(UserError, match="alice/none is not on the Hub: check data"):
        read("data=alice/none")
    shutil.rmtree(tmp_path / "cache")
    hub.faults.append(("GET .*/resolve/", "flip", 9))
    with pytest.raises(UserError, match=r"train\.jsonl of alice/chains was changed"):
        read()
    hub.faults.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="hf download --repo-type dataset alice/chains"):
        read()


# ---- the commands -----------------------------------------------------------------------------


def in_a_process(hub: HubServer, tmp_path: Path, *words: str, code: int = 0) -> str:
    """A command as users start it, as verbose as the client can be."""
    environment = child_environment(hub, tmp_path, ALICE)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | {"HF_HUB_VERBOSITY": "debug", "HF_DEBUG": "1", "COLUMNS": "100"},
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == code, told
    assert "Traceback" not in told
    assert ALICE not in told
    return told


def test_a_published_artifact_can_be_pulled_and_verified_by_commands(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "probe", tmp_path / "out"
    Probe.example().save(folder)
    publish_command.main([f"path={folder}", f"repo={NAME}"])
    assert "nothing was sent" in capsys.readouterr().out
    assert requests(hub) == []
    words = ("semspec.publish", f"path={folder}", f"repo={NAME}", "confirm=true", "tag=v1")
    sent = in_a_process(hub, tmp_path, *words)
    sha = hub.repos[f"models/{NAME}"].tags["v1"]
    assert f"path: {NAME}, revision: {sha}}}" in sent
    pull_command.main([f"repo={NAME}@v1", f"out={out}"])
    assert "probe:" in capsys.readouterr().out
    verify = ["verify", f"path={out}", f"repo={NAME}@{sha}"]
    artifacts_command.main(verify)
    (out / "README.md").write_text("---\n")
    with pytest.raises(SystemExit, match="1"):
        artifacts_command.main(verify)
    assert "README.md is not what alice/probe@" in capsys.readouterr().out


def test_a_first_publish_that_fails_is_one_line(
    hub: HubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody logged in, the repository is there, no such place, offline, no network: a line each."""
    Probe.example().save(tmp_path / "probe")

    def line(*words: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            publish_command.main([f"path={tmp_path / 'probe'}", "confirm=true", *words])
        assert stopped.value.code == 2
        told = capsys.readouterr().err
        assert told.startswith("semspec: ")
        assert told.count("\n") == 1
        return told

    monkeypatch.setattr("time.sleep", lambda _: None)
    assert "no right to write to alice/new: log in with 'hf auth login'" in line("repo=alice/new")
    monkeypatch.setenv("HF_TOKEN", ALICE)
    hub.make("models/alice/there", {"config.json": b"{}"})
    assert "alice/there exists and holds 1 files: add update=true" in line("repo=alice/there")
    assert "no right to write to nobody/new" in line("repo=nobody/new")
    assert "is not a repository name" in line("repo=alice/ne w")
    assert not [name for name in hub.repos if name != "models/alice/there"]
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE is set: publish where there is a network" in line("repo=alice/new")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert "what was there is as it was: try again" in line("repo=alice/new")


def test_a_failing_publish_is_one_line(hub: HubServer, tmp_path: Path) -> None:
    Probe.example().save(tmp_path / "probe")
    hub.faults.append(("POST /api/", "500", 50))  # the answer repeats the token that was sent
    words = ("semspec.publish", f"path={tmp_path / 'probe'}", "repo=alice/more", "confirm=true")
    told = in_a_process(hub, tmp_path, *words, code=2)
    assert told.count("semspec: ") == 1
    assert "what was there is as it was" in told
