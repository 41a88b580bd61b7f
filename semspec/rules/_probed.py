"""Probes for rules: found by the index in conf/probes.yaml or as told, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.models import ModelFacts, beside_package
from semspec.types import Role

FEATURES = ("paper", "last_layer", "plus")


def load_probe(
    given: str | None,
    role: Role,
    features: str,
    models: Mapping[Role, ModelFacts],
    split: str,
    temperature: float,
    allow_mismatch: bool,
) -> Probe:
    """The probe of a role: ``given`` (a folder, embedded/NAME, owner/name[@revision]) or indexed."""
    model = models[role]
    place, revision = _at(given) if given else _indexed(model, role, features)
    probe = Probe.load(place, revision)
    probe.check(
        model,
        split=split,
        temperature=temperature,
        role=role,
        allow_mismatch=allow_mismatch,
    )
    return probe


def _at(given: str) -> tuple[str, str | None]:
    place, _, revision = given.partition("@")
    return place, revision or None


def _indexed(model: ModelFacts, role: Role, features: str) -> tuple[str, str | None]:
    index: Any = OmegaConf.to_container(OmegaConf.load(beside_package("conf") / "probes.yaml"))
    for entry in index:
        if (entry["model"], entry["role"], entry["features"]) == (model.name, role, features):
            return entry["path"], entry.get("revision")
    also = " features=plus" if features == "plus" else ""
    raise UserError(
        f"no {role} probe ({features}) is known for {model.name}: name one with"
        f" accept.{role}_probe=FOLDER_OR_REPO, train one with python -m semspec.train_probe"
        f" role={role}{also} ..., or use a rule that needs none, such as accept=logprob"
    )
