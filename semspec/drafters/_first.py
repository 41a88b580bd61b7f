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
from semspec.types import Context, Draft, Room, Round, Seen


class SeveralSessions(DraftSessionBase):
    """Sessions that see the same rows; what they have missed is asked for once, for all of them."""

    def __init__(self, sessions: Iterable[DraftSession], kit: Kit) -> None:
        self.sessions, self.kit = list(sessions), kit
        # what any of them watches, each once
        self.watches = tuple(dict.fromkeys(read for one in self.sessions for read in one.watches))
        self.recalls = any(one.recalls for one in self.sessions if one.watches)

    def see(self, seen: Seen) -> None:
        for session in self.sessions:
            session.see(seen)

    def catch_up(self, context: Context) -> Plan[None]:
        """Ask one question for all sessions: the prompt is read once."""
        known = [count for one in self.sessions if (count := _known(one)) is not None]
        start = min(known, default=len(context))
        if start < len(context) - 1:
            self.see((yield from rows_of(context, self.kit, self.watches, start, -1)))


def _known(session: DraftSession) -> int | None:
    """Count the positions whose rows a session has kept; None: it keeps none."""
    if isinstance(session, RememberingSession):
        return session.memory.known
    return session.known if isinstance(session, Eagle3Session) else None


class FirstSession(SeveralSessions):
    """The first of some copying drafters that finds something, or else the other one.

    ``length``: tokens that the other one drafts at a time, where tokens are the unit, unless ``Room.turns`` says who
    drafts, and how much.
    """

    def __init__(
        self, copying: Sequence[DraftSession], other: DraftSession, kit: Kit, length: int
    ) -> None:
        super().__init__([*copying, other], kit)
        self.copying, self.other, self.length = copying, other, length
        self._by_token = isinstance(kit.boundary(), TokenBoundary)

    def observe(self, context: Context, done: Round) -> None:
        for session in self.sessions:
            session.observe(context, done)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        if room.turns is None:
            yield from self.catch_up(context)
        found = Draft(found="none")
        for session in () if room.tail else self.copying:  # they copy after the context alone
            found = yield from session.draft(context, room)
            if found.tokens:
                break
        if room.turns is not None:
            own = room.turns.model(found, room)
            if own is None:
                return found
            yield from self.catch_up(context)
            return (yield from self.other.draft(context, own))
        if found.tokens:
            return found
        if self._by_token:
            room = replace(room, units=min(room.units, self.length))
        return (yield from self.other.draft(context, room))
