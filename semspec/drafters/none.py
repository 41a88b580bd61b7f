"""No drafter: the target writes alone."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room


@register("drafter", "none")
@dataclass(frozen=True, kw_only=True)
class NoDrafter(DrafterBase):
    """Plain decoding: the target writes everything, unit by unit, without drafts."""

    plain = True

    def open(self, kit: Kit) -> NoDraft:
        return NoDraft()


class NoDraft(DraftSessionBase):
    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()  # a generator that asks nothing
        return Draft()
