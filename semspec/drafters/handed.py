"""Take drafts that somebody else makes: a query asks for one, and whoever runs the loop answers with tokens.

Not a choice of ``draft=``: inside an SGLang server, SGLang's own drafter proposes (``semspec.sglang_plugin.handed``).
"""

from __future__ import annotations

from semspec.drafters._base import DraftSessionBase
from semspec.drafters._proposal import cut_into_units
from semspec.protocols import Kit, Plan
from semspec.types import Answer, Context, Draft, Generate, Query, Room


class Handed:
    """A drafter that hands on what others propose."""

    def open(self, kit: Kit) -> HandedSession:
        return HandedSession(kit)


class HandedSession(DraftSessionBase):
    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        kit = self.kit
        wanted = Generate(room.limit, None, room.units)
        answer: Answer = yield Query(
            "draft", context, kit.sampling, kit.rng, generate=wanted, purpose="draft"
        )
        return Draft(*cut_into_units(kit, room, answer.tokens))
