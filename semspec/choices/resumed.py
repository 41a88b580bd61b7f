"""Drafts of fixed lengths: where a run's folder was begun so, and where a seed's text is promised to repeat itself."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.choices.presets import given_options
from semspec.results.records import RunFolder


def repeatable(arguments: Sequence[str]) -> list[str]:
    """Add ``adaptive=false`` unless ``adaptive`` or ``costs`` is given: of fixed lengths, one seed has one text."""
    steady = not {"adaptive", "costs"} & set(given_options(arguments))
    return [*arguments, *(["adaptive=false"] if steady else [])]


def as_begun(arguments: Sequence[str]) -> list[str]:
    """Add ``adaptive=false`` where the run's folder was begun so: by a version that drafted so by default."""
    given = given_options(arguments)
    folder = given.get("hydra.run.dir", "").strip("'\"")
    if not folder or "adaptive" in given:
        return list(arguments)
    known = RunFolder(folder).config
    begun = isinstance(known, dict) and known.get("adaptive") is False
    return [*arguments, *(["adaptive=false"] if begun else [])]
