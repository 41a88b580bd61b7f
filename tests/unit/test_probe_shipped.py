"""The probes of the embedded pair, as they are shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models import ModelConfig, ModelFacts, beside_package, facts
from semspec.rules.semantic import Semantic
from semspec.text import Text
from tests.support.pair import DRAFT, TARGET

SHIPPED = sorted(beside_package("hub_artifacts").glob("probe-*"))
NAMES = {
    f"probe-tiny-{role}-{kind}"
    for role in ("target", "draft")
    for kind in ("paper", "last-layer", "residues", "weekdays")
} | {
    "probe-tiny-target-plus",
    "probe-tiny-target-paper-sentence",
    "probe-tiny-target-plus-sentence",
    "probe-tiny-draft-paper-sentence",
}


def of(role: str) -> ModelFacts:
    path, folder = {"target": ("tiny-target", TARGET), "draft": ("tiny-draft", DRAFT)}[role]
    return facts(ModelConfig(path=f"embedded/{path}"), Text(str(folder)).fingerprint)


def test_all_of_them_are_there() -> None:
    assert {folder.name for folder in SHIPPED} == NAMES
    files = [f for folder in SHIPPED for f in folder.iterdir()]
    assert sum(f.stat().st_size for f in files) < 9e6


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda f: f.name)
def test_each_fits_the_model_that_is_shipped(folder: Path) -> None:
    probe = Probe.load(f"embedded/{folder.name}")
    role = folder.name.split("-")[2]
    assert probe.role == role
    split = "sentence" if folder.name.endswith("-sentence") else "paragraph"
    assert probe.check(of(role), split=split, temperature=0.6, role=role) == []
    with pytest.raises(UserError, match="does not fit"):
        probe.check(of("draft" if role == "target" else "target"))
    assert sum(f.stat().st_size for f in folder.iterdir()) < 1.5e6
    assert not probe.name.startswith(".")


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda f: f.name)
def test_each_tells_what_it_was_made_from(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["rows"] >= 5000
    assert config["metrics"]["test"]["all"]["spearman"] > 0.3
    assert config["training"]["problems"]["test"] >= 10
    wanted = {"residues": ["residues"], "weekdays": ["weekdays"]}.get(
        folder.name.split("-")[-1], []
    )
    assert config["data"]["trained_on"] == wanted
    names = {f.name for f in folder.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "calibration.svg",
        "learning_curve.svg",
        "scatter.svg",
    }


@pytest.mark.parametrize(
    ("probe", "target", "draft"),
    [
        ("paper", "target-paper", "draft-paper"),
        ("last_layer", "target-last-layer", "draft-last-layer"),
        ("plus", "target-plus", "draft-paper"),
    ],
)
def test_semantic_finds_its_probes(probe: str, target: str, draft: str) -> None:
    rule = Semantic(probe=probe).prepare(
        {"target": of("target"), "draft": of("draft")}, "paragraph", 0.6
    )
    assert isinstance(rule.target, Probe)
    assert isinstance(rule.draft, Probe)
    assert (rule.target.name, rule.draft.name) == (f"probe-tiny-{target}", f"probe-tiny-{draft}")
    with pytest.raises(UserError, match=r"accept\.probe=first: give paper or last_layer or plus"):
        Semantic(probe="first")
