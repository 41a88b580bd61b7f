"""Defaults that every engine shares."""

from __future__ import annotations

from typing import ClassVar

from semspec.protocols import Plugin
from semspec.types import Role, What


class EngineBase(Plugin):
    """Defaults: runs in this process, in any role, from weights in a folder."""

    offers: ClassVar[frozenset[What]]
    roles: ClassVar[frozenset[Role] | None] = None
    may_change: ClassVar[tuple[str, ...]] = ()

    @property
    def holds_weights(self) -> bool:
        return True
