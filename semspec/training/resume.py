"""Work in stages: alone in its folder, which keeps its options, so that a later start goes on with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from semspec.errors import UserError, without_passwords
from semspec.models.location import ModelFacts
from semspec.storage.digest import difference, flat
from semspec.storage.files import os_errors_as_user_errors, read_json, write_json
from semspec.storage.lock import FolderLock
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.sources import commit_of


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it; what the file system refuses ends in one line."""
    with os_errors_as_user_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            yield
        finally:
            lock.release()


# What code before an option did, where the option's default says something else
BEFORE: dict[str, Any] = {
    "draft.own_prompt": False,  # a draft with marks of its own read the target's template
}


def begin(folder: Path, config: ProbeConfig, model: ModelFacts, **more: Any) -> None:
    """Writes config.json, or refuses a folder that was begun for something else.

    A branch of a data set may move: the commit that was read first stays. What the engine lets differ
    (a server's address) may differ. An option that a folder does not know, because it is newer, has its
    default there, or what ``BEFORE`` says.
    """
    file = folder / "config.json"
    stored: Mapping[str, Any] | None = read_json(file)
    if file.exists() and not (isinstance(stored, dict) and {"facts", "engine"} <= set(stored)):
        raise UserError(f"{file} was not written by this command: give another folder=")
    if config.source == "hub" and config.revision is None:
        config.revision = stored["revision"] if stored else commit_of(config)
    wanted = config.sampled() | {"facts": asdict(model)} | _plain(more)
    wanted["engine"] = without_passwords(wanted["engine"])
    if stored is None:
        write_json(file, wanted)
        return
    free = [f"engine.{name}" for name in config.engine.may_change]
    was, now = flat(stored, free), flat(wanted, free)
    unsaid = flat(_defaults(config, more)) | BEFORE
    if not set(stored["engine"]) <= set(wanted["engine"]):  # another engine has other options
        unsaid = {key: value for key, value in unsaid.items() if not key.startswith("engine.")}
    was = {key: unsaid[key] for key in now if key in unsaid} | was
    if unlike := difference(was, now):
        raise UserError(f"{folder} was begun with other options ({unlike}): give another folder=")


def _defaults(config: ProbeConfig, more: Mapping[str, Any]) -> dict[str, Any]:
    """What every option is unless it is given; of plugins, those of the chosen one."""
    draft, engine = type(config.draft)(), type(config.engine)()
    unsaid = ProbeConfig(source=config.source, draft=draft, engine=engine)
    given = {name: v for name, v in more.items() if _is_options(v)}
    return unsaid.sampled() | _plain({name: type(v)() for name, v in given.items()})


def _plain(more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(v) if _is_options(v) else v for name, v in more.items()}


def _is_options(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
