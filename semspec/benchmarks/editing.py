"""Editing in the embedded world: answers repeat a list from the question with one change."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks.synthetic import Synthetic
from semspec.registry import register


@register("benchmark", "editing")
@dataclass(frozen=True, kw_only=True)
class EditingTask(Synthetic):
    """The embedded world: repeat a list with one value changed; for drafters that copy."""

    domains: tuple[str, ...] = ("editing",)
