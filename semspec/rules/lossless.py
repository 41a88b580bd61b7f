"""Speculative sampling: whatever was drafted, the output has exactly the target's distribution."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from semspec.protocols import InServer, Kit
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, TokenRule


@register("accept", "lossless")
@dataclass(frozen=True, kw_only=True)
class Lossless(TokenRule):
    """Speculative sampling (Leviathan 2023): exactly the target's distribution, token by token."""

    lossless: ClassVar[bool] = True
    in_server: ClassVar[InServer | None] = InServer()

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        return 1, "it keeps the target's distribution"

    def open(self, kit: Kit) -> LosslessSession:
        return LosslessSession(kit)
