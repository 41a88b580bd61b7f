"""The shipped probes of the embedded pair."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models.location import ModelConfig, ModelFacts, read_facts
from semspec.models.text import Text
from semspec.rules.semantic import Semantic
from semspec.rules.semantic_plus import SemanticPlus
from semspec.storage.packaged import beside_package
from tests.support.binding import run_of
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
    return read_facts(ModelConfig(path=f"embedded/{path}"), Text(str(folder)).fingerprint)


def test_the_shipped_probes_are_the_named_ones_and_small() -> None:
    assert {folder.name for folder in SHIPPED} == NAMES
    files = [f for folder in SHIPPED for f in folder.iterdir()]
    assert sum(f.stat().st_size for f in files) < 9e6


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda f: f.name)
def test_each_probe_fits_the_shipped_model(folder: Path) -> None:
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
def test_each_probe_records_what_it_was_made_from(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["rows"] >= 5000
    assert config["metrics"]["test"]["all"]["spearman"] > 0.3
    assert config["training"]["problems"]["test"] >= 10
    wanted = {"residues": ["residues"], "weekdays": ["weekdays"]}.get(
        folder.name.split("-")[-1], []
    )
    assert config["data"]["trained_on"] == wanted
    names = {f.name for f in folder.iterdir()}
    assert names - {"states.svg"} == {  # which is newer than some of them
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
    rule = Semantic(probe=probe).bind(
        run_of({"target": of("target"), "draft": of("draft")}, "paragraph", 0.6)
    )
    assert isinstance(rule.target, Probe)
    assert isinstance(rule.draft, Probe)
    assert (rule.target.name, rule.draft.name) == (f"probe-tiny-{target}", f"probe-tiny-{draft}")
    with pytest.raises(UserError, match=r"accept\.probe=first: give paper or last_layer or plus"):
        Semantic(probe="first")


PAPER = {f"{r}_probe": f"embedded/probe-tiny-{r}-paper" for r in ("target", "draft")}
LAST = {"target_probe": "embedded/probe-tiny-target-last-layer"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (SemanticPlus(target_probe=PAPER["target_probe"]), "give accept.features=paper, train"),
        (Semantic(probe="last_layer", **PAPER), "give accept.probe=paper, train"),
        (Semantic(**LAST), "give accept.probe=last_layer, train"),
        (Semantic(draft_probe="embedded/probe-tiny-draft-last-layer"), "accept.probe=last_layer"),
        (SemanticPlus(features="last_layer", target_probe=PAPER["target_probe"]),
         "out=probes/tiny-target-target-last_layer, or set accept.allow_mismatch=true"),
    ],
)  # fmt: skip
def test_a_probe_of_other_features_than_those_asked_for_is_refused(
    rule: SemanticPlus | Semantic, words: str
) -> None:
    models = {"target": of("target"), "draft": of("draft")}
    with pytest.raises(UserError, match=re.escape(words)):
        rule.bind(run_of(models, "paragraph", 0.6))
    dataclasses.replace(rule, allow_mismatch=True).bind(run_of(models, "paragraph", 0.6))
    SemanticPlus(features="paper", target_probe=PAPER["target_probe"]).bind(
        run_of(models, "paragraph", 0.6)
    )


def test_the_advice_where_no_probe_is_known_can_be_followed() -> None:
    models = {"target": of("target"), "draft": of("draft")}
    with pytest.raises(
        UserError,
        match=r"split=sentence features=last_layer chains=mixed out=(\S+) and give accept.target_probe=\1, or use",
    ):
        Semantic(probe="last_layer").bind(run_of(models, "sentence", 0.6))
    with pytest.raises(UserError, match="use split=paragraph or split=sentence, or accept=loss"):
        Semantic().bind(run_of(models, "token", 0.6))  # no probe of tokens can be trained
