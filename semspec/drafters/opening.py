"""Open drafting sessions when they are first needed: a problem that never drafts needs none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from semspec.drafters._base import DraftSessionBase
from semspec.protocols import DraftSession, Plan
from semspec.types import Context, Draft, Read, Room, Seen


@dataclass(slots=True)
class Opener:
    """Opens the sessions of one drafter for one problem after another.

    The first one is opened at once, and shows what they watch. Sessions that learn from every round (``observe``) are
    always opened at once.
    """

    # watches and recalls of sessions that may wait; None: not known yet, or they may not wait
    _known: tuple[tuple[Read, ...], bool] | None = field(default=None, init=False)

    def __call__(self, opening: Callable[[], DraftSession]) -> DraftSession:
        if self._known is not None:
            return LazySession(opening, *self._known)
        session = opening()
        learning: object = type(session).observe
        if learning is DraftSessionBase.observe:
            self._known = session.watches, session.recalls
        return session


class LazySession(DraftSessionBase):
    """A session that is opened when it is first asked for a draft or given rows."""

    def __init__(
        self, opening: Callable[[], DraftSession], watches: tuple[Read, ...], recalls: bool
    ) -> None:
        self.watches, self.recalls = watches, recalls
        self._opening = opening
        self._session: DraftSession | None = None

    def _opened(self) -> DraftSession:
        if self._session is None:
            self._session = self._opening()
        return self._session

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        return (yield from self._opened().draft(context, room))

    def see(self, seen: Seen) -> None:
        self._opened().see(seen)
