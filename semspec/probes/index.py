"""The index of probes in conf/probes.yaml: which probe belongs to which model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from semspec.errors import UserError
from semspec.models.location import EMBEDDED
from semspec.probes.features import Features
from semspec.storage.packaged import beside_package

FIELDS = ("model", "role", "features", "path")
SPLIT = "paragraph"  # unless an entry says otherwise
FEATURES = ("paper", "last_layer", "plus")


def entries(file: Path | None = None) -> list[dict[str, Any]]:
    """Read all entries of the index; raise UserError for a malformed one or a Hub path without commit."""
    file = file or beside_package("conf") / "probes.yaml"
    stored: Any = OmegaConf.to_container(OmegaConf.load(file))
    for number, entry in enumerate(stored, 1):
        at = f"{file}, entry {number}"
        named = all(isinstance(entry.get(name), str) for name in FIELDS)
        if not named or set(entry) - {*FIELDS, "split", "revision"}:
            raise UserError(
                f"{at}: give {', '.join(FIELDS)}; also split, unless it is paragraph, and"
                " revision for a probe from the Hub"
            )
        if entry["role"] not in ("target", "draft") or entry["features"] not in FEATURES:
            raise UserError(
                f"{at}: give role target or draft, and features one of {', '.join(FEATURES)}"
            )
        local = entry["path"].startswith((EMBEDDED, ".", "/", "~"))
        if not local and not re.fullmatch("[0-9a-f]{40}", str(entry.get("revision"))):
            raise UserError(f"{at}: {entry['path']} is on the Hub: give its commit, revision: ...")
    return list(stored)


def find(
    model: str, role: str, features: str, split: str, file: Path | None = None
) -> tuple[str, str | None] | None:
    """Return path and revision of the first entry that fits, or None."""
    wanted = {"model": model, "role": role, "features": features, "split": split}
    for entry in entries(file):
        if wanted.items() <= ({"split": SPLIT} | entry).items():
            return entry["path"], entry.get("revision")
    return None


def feature_set(features: Features, layers: int) -> str:
    """Return which of ``FEATURES`` these are, for a model with this many layers."""
    if features.pooling != ("mean",) or features.logprobs:
        return "plus"
    return "last_layer" if features.layers == (layers,) else "paper"


def line(config: Mapping[str, Any], features: str, repo: str, commit: str) -> str:
    """Return the entry of a published probe with this config."""
    split = "" if config["split"] == SPLIT else f" split: {config['split']},"
    return (
        f"- {{model: {config['model']['id']}, role: {config['role']}, features: {features},{split}"
        f" path: {repo}, revision: {commit}}}"
    )
