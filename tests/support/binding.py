"""A ``Run`` for tests that bind a plugin without a solver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from semspec.models.location import ModelFacts
from semspec.protocols import Run
from semspec.types import Role, Sampling, What


def run_of(
    models: Mapping[Role, ModelFacts],
    split: str = "token",
    temperature: float = 1.0,
    folders: Mapping[Role, Path] | None = None,
    offers: Collection[What] = (),
) -> Run:
    """Return a run of these models without drafts that a guarantee could cover."""
    return Run(
        models=models,
        split=split,
        sampling=Sampling(temperature),
        folders=folders or {},
        offers=offers,
    )
