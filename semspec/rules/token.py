"""SpecSampling as the baseline of step-level methods: draft whole steps, keep single tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from semspec.registry import register
from semspec.rules.lossless import Lossless


@register("accept", "token")
@dataclass(frozen=True, kw_only=True)
class Token(Lossless):
    """Verifies drafted steps token by token, losslessly (SpecSampling)."""

    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph", "sentence"})

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        return None
