"""Recommended options of a model: from its preset (conf/presets.yaml), or its generation_config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from semspec.errors import UserError
from semspec.storage import foreign
from semspec.storage.packaged import beside_package

GENERATION_CONFIG = "generation_config.json"
DRAWN = {"temperature": (0.0, 1e3), "top_p": (0.0, 1.0), "top_k": (0, 1 << 31), "min_p": (0.0, 1.0)}
"""What is read from that file, with the least and the largest allowed value."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a target's preset brings besides the model, and the source of that."""

    source: str
    thinking: str  # who opens the thinking: the template or the model
    context: int
    options: Sequence[str]
    pair: Sequence[str]  # the draft that goes with the model
    layer: int = 0  # layer whose states draft=pld_plus and adapld compare; 0: their default


@cache
def presets(file: Path | None = None) -> Mapping[str, Preset]:
    """Return the presets that bring further options, by name."""
    stored: Any = OmegaConf.to_container(
        OmegaConf.load(file or beside_package("conf") / "presets.yaml")
    )
    return {str(name): Preset(**entry) for name, entry in stored.items()}


def in_generation_config(folder: Path) -> dict[str, str]:
    """Return the sampling that a model's generation_config.json recommends, as options.

    ``do_sample: false`` becomes temperature 0. Raise UserError for an invalid value.
    """
    path = folder / GENERATION_CONFIG
    if not os.path.lexists(path):
        return {}
    told = foreign.read_object(path, way_out="download the model again", finite=False)
    if told.get("do_sample") is False:
        return {"temperature": "0"}
    named = [name for name in DRAWN if told.get(name) is not None]
    return {name: f"{_number(path, name, told[name]):g}" for name in named}


def _number(path: Path, name: str, value: object) -> float:
    least, most = DRAWN[name]
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = whole or (isinstance(value, float) and name != "top_k")
    if not number or not least <= value <= most:  # type: ignore[operator]
        raise UserError(
            f"{path} recommends {name}={ascii(value)[:40]}, which is not valid: give"
            f" {name}= yourself"
        )
    return float(value)  # type: ignore[arg-type]
