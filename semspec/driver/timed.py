"""Measure the time of drafters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from semspec.decoding.costs import Costs
from semspec.decoding.plans import tapped
from semspec.protocols import DraftSession, Plan
from semspec.types import Answer, Context, Draft, Query, Room, Round, Seen


class Timed:
    """A drafter's session that stamps its drafts with the seconds of its own work.

    Waiting for answers does not count; the answers bring their own seconds.
    """

    def __init__(self, session: DraftSession, costs: Costs | None = None) -> None:
        self.session, self.costs = session, costs
        self.watches, self.recalls = session.watches, session.recalls

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        seconds, resumed = 0.0, time.perf_counter()

        def pause(queries: Sequence[Query] = ()) -> None:
            nonlocal seconds
            spent = time.perf_counter() - resumed
            seconds += spent
            if self.costs is not None:
                self.costs.drafted(spent)

        def resume(queries: Sequence[Query], answers: Sequence[Answer]) -> None:
            nonlocal resumed
            resumed = time.perf_counter()

        draft = yield from tapped(self.session.draft(context, room), pause, resume)
        pause()
        draft.seconds = seconds
        return draft

    def see(self, seen: Seen) -> None:
        self.session.see(seen)

    def observe(self, context: Context, done: Round) -> None:
        self.session.observe(context, done)
