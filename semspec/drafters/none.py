"""No drafter: the target writes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Role, Room, Round


@register("drafter", "none")
@dataclass(frozen=True, kw_only=True)
class NoDrafter:
    """Plain decoding: nothing is drafted, the target writes unit by unit."""

    uses: ClassVar[frozenset[Role]] = frozenset()
    plain: ClassVar[bool] = True
    ahead: ClassVar[bool] = False

    def open(self, kit: Kit) -> NoDraft:
        return NoDraft()


class NoDraft:
    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()  # a generator that asks nothing
        return Draft()

    def observe(self, context: Context, done: Round) -> None:
        """Nothing to learn."""
