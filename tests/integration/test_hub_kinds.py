"""Every registered kind of artifact goes through the real Hub client; and what runs load from the Hub.

Artifacts in ``hub_artifacts/`` represent their kinds; a kind without one is represented by its example.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

from semspec import registry
from semspec.artifacts import inspection
from semspec.artifacts.arc_calibration import COLUMNS, ArcCalibration
from semspec.artifacts.base import Artifact
from semspec.artifacts.dense_datastore import INDEX, DenseDatastore
from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.artifacts.judge_head import JudgeHead
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.cli import convert_head as convert_command
from semspec.cli import publish as publish_command
from semspec.cli import pull as pull_command
from semspec.datastores import indices
from semspec.datastores.files import write_arrays
from semspec.errors import UserError
from semspec.heads.published import needs_conversion
from semspec.models.location import KnownModels, ModelConfig, ModelFacts, read_facts
from semspec.models.text import Text
from semspec.solver import Solver
from semspec.storage.packaged import beside_package
from tests.support.binding import run_of
from tests.support.datastores import sparse_folder
from tests.support.hub import ALICE, hub_for, requests, snapshot_files
from tests.support.hub_server import HubServer
from tests.support.pair import TARGET, configuration

NAME = "alice/thing"
KINDS = [plugin.cls for plugin in registry.plugins("artifact").values()]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda cls: cls.kind)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


SHIPPED: dict[str, Path] = {}
"""The smallest folder of each kind of which some ship."""
for _folder in sorted(beside_package("hub_artifacts").iterdir(), key=size, reverse=True):
    SHIPPED[inspection.kind_of(_folder).kind] = _folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_for(tmp_path, monkeypatch) as server:
        monkeypatch.setenv("HF_TOKEN", ALICE)
        yield server


def folder_of(kind: type[Artifact], beside: Path) -> Path:
    if kind.kind in SHIPPED:
        return SHIPPED[kind.kind]
    kind.example().save(beside / "made")
    return beside / "made"


def held(hub: HubServer, name: str = NAME) -> dict[str, bytes]:
    """Return the files that the Hub holds now, except its own."""
    repo = hub.repos[f"models/{name}"]
    files = repo.commits[repo.heads["main"]]
    told = {n: (hub.blobs / f.get("sha256", f["oid"])).read_bytes() for n, f in files.items()}
    return {n: data for n, data in told.items() if n != ".gitattributes"}


def alike(one: Artifact, other: Artifact) -> bool:
    return (
        type(one) is type(other)
        and one.config == other.config
        and set(one.tensors) == set(other.tensors)
        and all(tensor.equal(other.tensors[name]) for name, tensor in one.tensors.items())
        and {n: p.read_bytes() for n, p in one.parts.items()}
        == {n: p.read_bytes() for n, p in other.parts.items()}
    )


@each_kind
def test_every_kind_survives_publish_pull_and_load(
    kind: type[Artifact], hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published and pulled by the commands; loaded by commit, twice, offline, and with a byte flipped."""
    folder = folder_of(kind, tmp_path)
    publish_command.main([f"path={folder}", f"repo={NAME}", "confirm=true", "tag=v1"])
    assert held(hub) == snapshot_files(folder)
    sha = hub.repos[f"models/{NAME}"].tags["v1"]
    local = kind.load(folder)
    assert alike(kind.from_pretrained(NAME, revision="v1"), local)
    requests(hub)
    assert alike(kind.load(f"{NAME}@{sha}"), local)
    assert requests(hub) == []
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert alike(kind.load(f"{NAME}@v1"), local)
    assert requests(hub) == []
    for name in (NAME, f"{NAME}@v1", f"{NAME}@{sha}"):
        out = tmp_path / f"pulled-{name.partition('@')[2]}"
        pull_command.main([f"repo={name}", f"out={out}"])
        assert snapshot_files(out) == snapshot_files(folder)
    shutil.rmtree(tmp_path / "cache")
    hub.faults.append(("GET .*/(cdn|resolve)/", "flip", 99))
    with pytest.raises(UserError, match="was corrupted in the download"):
        kind.load(f"{NAME}@{sha}")


@each_kind
def test_a_loaded_artifact_can_be_pushed_again_unchanged(
    kind: type[Artifact], hub: HubServer, tmp_path: Path
) -> None:
    made = kind.load(folder_of(kind, tmp_path))
    sha = made.push_to_hub(NAME)
    made.save(tmp_path / "saved" / "thing")
    assert held(hub) == snapshot_files(tmp_path / "saved" / "thing")
    if "kind" in made.config:  # one of ours, and not in transformers' way of writing
        assert {n: d for n, d in held(hub).items() if n != "README.md"} | {
            "manifest.json": b""
        } == {
            n: d for n, d in snapshot_files(folder_of(kind, tmp_path)).items() if n != "README.md"
        } | {"manifest.json": b""}
    pull_command.main([f"repo={NAME}@{sha}", f"out={tmp_path / 'pulled'}"])
    again = kind.load(tmp_path / "pulled")
    assert alike(again, made)
    assert again.push_to_hub(NAME) == sha  # the same bytes: no commit


@pytest.mark.parametrize("index", ["scann", "faiss"])
def test_a_dense_datastore_is_published_with_its_index(
    index: str, hub: HubServer, tmp_path: Path
) -> None:
    made = DenseDatastore.load(SHIPPED["dense_datastore"])
    keys = [shard.keys for shard in made.open().shards]
    files = indices.build(index, keys, leaves=20)
    write_arrays(tmp_path / INDEX, files)
    made.config["index"] = {"name": index, "files": {n: len(d) for n, d in files.items()}}
    made.parts[INDEX] = tmp_path / INDEX
    sha = made.push_to_hub(NAME)
    assert held(hub)[INDEX] == (tmp_path / INDEX).read_bytes()
    state = made.tensors["mean"].numpy() + 1
    found = DenseDatastore.load(f"{NAME}@{sha}").open(index=True).nearest(state, 5, 4)
    assert found == made_again(made, tmp_path).open(index=True).nearest(state, 5, 4)
    shutil.rmtree(tmp_path / "cache")
    path = hub.blobs / hub.repos[f"models/{NAME}"].commits[sha][INDEX]["sha256"]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{INDEX} of {NAME}.* was corrupted in the download"):
        DenseDatastore.load(f"{NAME}@{sha}")


def made_again(made: DenseDatastore, beside: Path) -> DenseDatastore:
    made.save(beside / "again")
    return DenseDatastore.load(beside / "again")


# ---- what a run takes from the Hub ------------------------------------------------------------


def silenced(name: str) -> Artifact:
    """Return the shipped artifact of that name with every float 0: it loads, and has no effect."""
    folder = beside_package("hub_artifacts") / name
    made = inspection.kind_of(folder).load(folder)
    kept = ("mean", "std", "deviation", "sigma")
    for key, tensor in made.tensors.items():
        if tensor.is_floating_point() and key not in kept and not key.startswith("calibration."):
            made.tensors[key] = torch.zeros_like(tensor)
    return made


def another(kind: str, target: ModelFacts, beside: Path) -> Artifact:
    """One for the embedded target that drafts, or judges, unlike what ships."""
    if kind == "sparse":
        return SparseDatastore.load(sparse_folder(beside, [[1, 2, 3]], facts=target))
    return silenced(kind)


TOKENS = ("split=token", "accept=greedy", "temperature=0")
USES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # what takes it, its option, and how it is run
    "dresd": ("dense-tiny", "draft.datastore", ("draft=dresd", *TOKENS)),
    "rest": ("sparse", "draft.datastore", ("draft=rest", *TOKENS)),
    "suffix": ("sparse-tiny", "draft.datastore", ("draft=suffix", *TOKENS)),  # else it has none
    "hybrid, sparse": ("sparse", "draft.sparse", ("draft=hybrid", "draft.sources=rest", *TOKENS)),
    "hybrid, dense": (
        "dense-tiny",
        "draft.dense",
        ("draft=hybrid", "draft.sources=dresd", *TOKENS),
    ),
    "eagle3": ("eagle3-tiny", "draft.head.path", ("draft=eagle3", *TOKENS)),
    "medusa": ("medusa-tiny", "draft.head.path", ("draft=medusa", *TOKENS)),
    "semantic": ("probe-tiny-target-paper", "accept.target_probe", ("accept=semantic",)),
}


def rounds(*overrides: str) -> list[Any]:
    """Return the drafted, kept and written tokens of each round of one problem."""
    config = configuration("benchmark.seed=77", "max_new_tokens=48", *overrides)
    with Solver(config) as solver:
        (solved,) = solver.solve([next(iter(config.benchmark.problems()))], "speculative")
    return [(r.drafted, r.kept, r.written, r.scores) for r in solved.outcome.rounds]


@pytest.fixture(scope="module")
def target() -> ModelFacts:
    return read_facts(ModelConfig(path="embedded/tiny-target"), Text(str(TARGET)).fingerprint)


@pytest.mark.parametrize("what", USES)
def test_a_run_uses_the_model_that_it_takes_from_the_hub(
    what: str, hub: HubServer, tmp_path: Path, target: ModelFacts
) -> None:
    kind, option, overrides = USES[what]
    sha = another(kind, target, tmp_path).push_to_hub(NAME)
    named = (f"{option}={NAME}@{sha}",)
    if option.endswith(".path"):  # a model's revision is an option of its own
        named = (f"{option}={NAME}", f"{option.replace('.path', '.revision')}={sha}")
    requests(hub)
    theirs = rounds(*overrides, *named)
    assert [line for line in requests(hub) if f"/{NAME}/resolve/{sha}/" in line]
    assert theirs != rounds(*overrides)


def test_a_rule_uses_the_artifact_that_it_takes_from_the_hub(
    hub: HubServer, target: ModelFacts
) -> None:
    models = KnownModels({"target": (ModelConfig(path=target.name), target.tokenizer)})

    def prepared(made: Artifact, *overrides: str) -> Any:
        name = f"alice/{made.kind}"
        sha = made.push_to_hub(name)
        rule = configuration(*(o.replace("HUB", f"{name}@{sha}") for o in overrides)).accept
        return rule.bind(run_of(models, "paragraph", 0.6))

    arc = ArcCalibration.load("embedded/arc-tiny")
    theirs = {"c_s": 0.25, "alpha_kappa": 0.5}  # tau is what arc_certified finds itself
    for setting in arc.config["settings"]:
        setting["constants"] |= theirs
    arc.tensors["evidence"][:, COLUMNS.index("js")] = 0.0
    for name in ("arc", "arc_certified"):
        words = (f"accept={name}", "accept.calibration=HUB", "accept.allow_mismatch=true")
        by = prepared(arc, *words).known.setting.constants
        assert {name: getattr(by, name) for name in theirs} == theirs
    head = JudgeHead.load("embedded/judge-head-tiny-target")
    head.tensors["bias"] += 7
    judge = prepared(head, "accept=judge_head", "accept.head=HUB")
    assert judge.judge.tensors["bias"].equal(head.tensors["bias"])
    scores = torch.linspace(0, 1, 400)  # wrong below 0.3
    columns = {"scores": scores, "semantic": (scores > 0.3).float(), "groups": torch.arange(400)}
    risk = RiskCalibration.of(Probe.load("embedded/probe-tiny-target-plus"), columns, {})
    found = prepared(risk, "accept=semantic_risk", "accept.calibration=HUB")
    assert found.certified.steps < 400
    assert 0.2 < found.certified.threshold < 0.35
    how = {"temperature": 0.6, "draft": "embedded/tiny-draft"}
    free = columns | {"scores": scores - 1}
    risk = RiskCalibration.of_logprobs(models["target"], "paragraph", free, {}, how)
    found = prepared(risk, "accept=logprob", "accept.calibration=HUB", "accept.risk=0.05")
    assert -0.8 < found.certified.threshold < -0.65


def test_an_artifact_of_another_model_is_refused_by_name(hub: HubServer, tmp_path: Path) -> None:
    other = ModelFacts("owner/model", "c0ffee00" * 5, "", 24, 128, "f" * 64)
    another("sparse", other, tmp_path).push_to_hub(NAME)
    with pytest.raises(UserError, match="owner/model, the model is embedded/tiny-target"):
        rounds("draft=rest", *TOKENS, f"draft.datastore={NAME}")


def test_the_configs_on_the_hub_are_those_of_the_folders(hub: HubServer, tmp_path: Path) -> None:
    """Each kind is told apart by what is on the Hub, heads in transformers' format, too."""
    for kind in KINDS:
        name = f"alice/{kind.kind}"
        folder = folder_of(kind, tmp_path / kind.kind)
        hub.make(f"models/{name}", snapshot_files(folder))
        assert type(pull_command.pull(name)[1]) is kind
        assert json.loads(held(hub, name)["config.json"])


@pytest.mark.deep
def test_a_pickled_head_is_converted_once_and_then_found_by_its_name(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As recipes name such heads: a repository with pytorch_model.bin, and nothing of what a run reads."""
    folder = beside_package("hub_artifacts") / "eagle3-tiny"
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    files = {"config.json": (folder / "config.json").read_bytes()}
    files["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    sha = hub.make(f"models/{NAME}", files)
    command = f"python -m semspec.convert_head path={NAME}"
    assert needs_conversion(NAME) == command
    assert needs_conversion(NAME, sha) == needs_conversion(f"{NAME}@{sha}") == f"{command}@{sha}"
    with pytest.raises(UserError, match=f"convert it once: {command}@{sha}$"):
        rounds("draft=eagle3", *TOKENS, f"draft.head.path={NAME}")
    convert_command.main([f"path={NAME}"])
    assert f"use it: draft=eagle3 draft.head.path={NAME}" in capsys.readouterr().out
    own = rounds("draft=eagle3", *TOKENS)
    assert rounds("draft=eagle3", *TOKENS, f"draft.head.path={NAME}") == own
    assert needs_conversion(NAME) is None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests(hub)
    assert needs_conversion(NAME) is needs_conversion("alice/unknown") is None
    assert rounds("draft=eagle3", *TOKENS, f"draft.head.path={NAME}") == own
    assert not requests(hub)
    made = Eagle3Head.read(next((tmp_path / "cache").glob("*/.semspec/converted/*")))
    source = made.config["converted_from"]
    assert (source["name"], source["revision"]) == (NAME, sha)
