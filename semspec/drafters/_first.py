"""Copy where there is a long enough match, and use another drafter where there is none.

Whether a match is found depends on the text alone, never on what a model would draft, so the choice
does not change the distribution of a draft. A copy stays a point mass, and what a model has drawn
comes with the rows that it was drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from semspec.drafters._base import DraftSessionBase, rows_of
from semspec.drafters._memory import RememberingSession
from semspec.drafters.eagle3 import Eagle3Session
from semspec.protocols import DraftSession, Kit, Plan
from semspec.splitters.token import TokenBoundary
from semspec.types import Context, Draft, Room, Round, Seen


class SeveralSessions(DraftSessionBase):
    """Sessions that see the same rows; rows that any of them missed are requested once for all."""

    def __init__(self, sessions: Iterable[DraftSession], kit: Kit) -> None:
        self.sessions, self.kit = list(sessions), kit
        # what any of them watches, without duplicates
        self.watches = tuple(dict.fromkeys(read for one in self.sessions for read in one.watches))
        self.recalls = any(one.recalls for one in self.sessions if one.watches)

    def see(self, seen: Seen) -> None:
        for session in self.sessions:
            session.see(seen)

    def catch_up(self, context: Context) -> Plan[None]:
        """Ask for the missing rows of all sessions in one query, so that the prompt is read once."""
        known = [count for one in self.sessions if (count := _known(one)) is not None]
        start = min(known, default=len(context))
        if start < len(context) - 1:
            self.see((yield from rows_of(context, self.kit, self.watches, start, -1)))


def _known(session: DraftSession) -> int | None:
    """Return how many positions' rows a session has kept; None: it keeps none."""
    if isinstance(session, RememberingSession):
        return session.memory.known
    return session.known if isinstance(session, Eagle3Session) else None


class FirstSession(SeveralSessions):
    """The first copying drafter that finds something, else the other drafter.

    ``length``: tokens that the other one drafts at a time if the unit is a token, unless ``Room.turns`` says who drafts
    how much. ``lends``: copied steps are none of the other drafter's.
    """

    def __init__(
        self,
        copying: Sequence[DraftSession],
        other: DraftSession,
        kit: Kit,
        length: int,
        lends: bool = False,
    ) -> None:
        super().__init__([*copying, other], kit)
        self.copying, self.other, self.length, self.lends = copying, other, length, lends
        self._by_token = isinstance(kit.boundary(), TokenBoundary)

    def observe(self, context: Context, done: Round) -> None:
        for session in self.sessions:
            session.observe(context, done)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        if room.turns is None:
            yield from self.catch_up(context)
        found = Draft(found="none")
        for session in () if room.tail else self.copying:  # they copy only right after the context
            found = yield from session.draft(context, room)
            if found.tokens:
                break
        if room.turns is not None:
            own = room.turns.model(found, room)
            if own is None:
                found.lent = self.lends and not self._by_token
                return found
            yield from self.catch_up(context)
            return (yield from self.other.draft(context, own))
        if found.tokens:
            return found
        if self._by_token:
            room = replace(room, units=min(room.units, self.length))
        return (yield from self.other.draft(context, room))
