"""Add ``adaptive=false`` or ``salvage=false`` to resume a run begun with older defaults, or to make a seed repeatable."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.choices.presets import given_options
from semspec.results.records import RunFolder


def repeatable(arguments: Sequence[str]) -> list[str]:
    """Add ``adaptive=false`` unless ``adaptive`` or ``costs`` is given: with fixed lengths, a seed gives one text."""
    steady = not {"adaptive", "costs"} & set(given_options(arguments))
    return [*arguments, *(["adaptive=false"] if steady else [])]


def as_begun(arguments: Sequence[str]) -> list[str]:
    """Add the older defaults that the run's folder was begun with: ``adaptive=false``, or ``salvage=false``."""
    folder = given_options(arguments).get("hydra.run.dir", "").strip("'\"")
    return begun_with(arguments, RunFolder(folder).config if folder else None)


def begun_with(arguments: Sequence[str], known: object) -> list[str]:
    """Add the same from a recorded configuration."""
    given = given_options(arguments)
    if not isinstance(known, dict):
        return list(arguments)
    steady = "adaptive" not in given and known.get("adaptive") is False
    alone = not steady and not {"salvage", "nested"} & set(given) and known.get("salvage") is False
    return [*arguments, *["adaptive=false"] * steady, *["salvage=false"] * alone]
