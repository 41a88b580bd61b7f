"""Quoting in the embedded world: answers repeat facts of a paragraph in the question."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks.synthetic import Synthetic
from semspec.registry import register


@register("benchmark", "grounded")
@dataclass(frozen=True, kw_only=True)
class GroundedTask(Synthetic):
    """The embedded world: quote facts from a paragraph; for drafters that copy."""

    domains: tuple[str, ...] = ("grounded",)
