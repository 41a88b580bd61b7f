"""Work in stages keeps its options in its folder, so that a later start goes on with the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semspec.digest import difference
from semspec.errors import UserError
from semspec.files import read_json, write_json
from semspec.models import ModelFacts
from semspec.probes.settings import ProbeConfig
from semspec.probes.sources import commit_of


def begin(folder: Path, config: ProbeConfig, model: ModelFacts, **more: Any) -> None:
    """Writes config.json, or refuses a folder that was begun for something else.

    A branch of a data set may move: the commit that was read first stays.
    """
    file = folder / "config.json"
    stored: Mapping[str, Any] | None = read_json(file)
    if config.source == "hub" and config.revision is None:
        config.revision = stored["revision"] if stored else commit_of(config)
    wanted = config.sampled() | {"facts": asdict(model)} | more
    if stored is None:
        write_json(file, wanted)
    elif unlike := difference(stored, wanted):
        raise UserError(f"{folder} was begun with other options ({unlike}): give another folder=")
