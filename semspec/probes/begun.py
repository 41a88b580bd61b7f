"""Work in stages: alone in its folder, which keeps its options, so that a later start goes on with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semspec.digest import difference
from semspec.errors import UserError
from semspec.files import read_json, told_in_one_line, write_json
from semspec.lock import FolderLock
from semspec.models import ModelFacts
from semspec.probes.settings import ProbeConfig
from semspec.probes.sources import commit_of


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it; what the file system refuses ends in one line."""
    with told_in_one_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield
        finally:
            lock.release()


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
