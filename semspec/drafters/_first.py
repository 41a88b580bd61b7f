"""Copies where there is a match that is long enough, and another drafter where there is none.

Whether something is found depends on the text alone, never on what a model would draft: the choice
leaves the law of a draft as it is. Each draft keeps what it says of itself: a copy is a point mass, what
a model has drawn comes with the rows that it was drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from semspec.drafters._base import DraftSessionBase, rows_of
from semspec.drafters._memory import RememberingSession
from semspec.drafters.eagle3 import Eagle3Session
from semspec.protocols import DraftSession, Kit, Plan
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Draft, Read, Room, Round, Seen


class FirstSession(DraftSessionBase):
    """The first of some copying drafters that finds something, or else the other one.

    ``length``: tokens that the other one drafts at a time, where tokens are the unit, unless ``Room.turns`` says who
    drafts, and how much.
    """

    def __init__(
        self, copying: Sequence[DraftSession], other: DraftSession, kit: Kit, length: int
    ) -> None:
        self.copying, self.other, self.kit, self.length = copying, other, kit, length
        self.sessions = [*copying, other]
        self.watches = all_watches(self.sessions)
        self._by_token = isinstance(kit.boundary(), TokenBoundary)

    def see(self, seen: Seen) -> None:
        for session in self.sessions:
            session.see(seen)

    def observe(self, context: Context, done: Round) -> None:
        for session in self.sessions:
            session.observe(context, done)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        if room.turns is None:
            yield from catch_up(self, context, self.kit)
        found = Draft(found="none")
        for session in () if room.tail else self.copying:  # they copy after the context alone
            found = yield from session.draft(context, room)
            if found.tokens:
                break
        if room.turns is not None:
            own = room.turns.model(found, room)
            if own is None:
                return found
            yield from catch_up(self, context, self.kit)
            return (yield from self.other.draft(context, own))
        if found.tokens:
            return found
        if self._by_token:
            room = replace(room, units=min(room.units, self.length))
        return (yield from self.other.draft(context, room))


def all_watches(sessions: Iterable[DraftSession]) -> tuple[Read, ...]:
    """Return what any of the sessions watches, each once."""
    return tuple(dict.fromkeys(read for session in sessions for read in session.watches))


def catch_up(whole: DraftSession, context: Context, kit: Kit) -> Plan[None]:
    """Ask one question for all of a session's ``sessions``: the prompt is read once."""
    known = [_known(session) for session in getattr(whole, "sessions", ())]
    start = min((count for count in known if count is not None), default=len(context))
    if start < len(context) - 1:
        whole.see((yield from rows_of(context, kit, whole.watches, start, -1)))


def _known(session: DraftSession) -> int | None:
    """Count the positions whose rows a session has kept; None: it keeps none."""
    if isinstance(session, RememberingSession):
        return session.memory.known
    return session.known if isinstance(session, Eagle3Session) else None
