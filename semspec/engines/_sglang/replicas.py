"""Replicas of one model: a problem stays on the server that caches its prefix, and moves if that is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from semspec.engines._sglang.server import Server
from semspec.engines.news import ReplicaLine, State
from semspec.errors import UserError
from semspec.types import Context, Role

REST = 15.0  # seconds before a lost replica is tried again


class Replicas:
    """One or more servers of a model. While none can be reached, they are tried in turn until patience ends."""

    def __init__(
        self,
        places: Sequence[Server],
        role: Role,
        patience: float = 0.0,
        tell: Callable[[ReplicaLine], object] = lambda line: None,
        returning: Callable[[], bool] = lambda: False,
    ) -> None:
        """``tell`` gets a line when a server is lost, and one when it answers again.

        ``returning``: True while one of them is being restarted, so that patience does not end.
        """
        assert places
        self.places, self.role, self.patience = list(places), role, patience
        self._tell, self._away = tell, dict[Server, float]()  # reported as lost, and since when
        self._returning = returning
        self._home: dict[int, Server] = {}  # by context key
        self._lost: dict[Server, float] = {}  # when it last failed
        self._ended: set[Server] = set()  # servers that we started and whose processes are gone
        self._dark: float | None = None  # since when no server has answered

    def of(self, context: Context) -> Server:
        """Return this problem's home server; a new problem goes to the server with the fewest."""
        home = self._home.get(context.key)
        if home is not None and self._alive(home):
            return home
        alive = [place for place in self.places if self._alive(place)]
        if not alive:
            return min(self.places, key=self._lost.__getitem__)
        used = Counter(self._home.values())
        home = self._home[context.key] = min(alive, key=used.__getitem__)
        return home

    def _alive(self, place: Server) -> bool:
        rested = time.monotonic() - self._lost.get(place, -REST) >= REST
        return rested and place not in self._ended

    def was_lost(self, place: Server) -> bool:
        """Return whether the server must be checked again before it gets a query."""
        return place in self._lost

    def found(self, place: Server) -> None:
        """Record that a lost server passed its check; it has yet to answer."""
        self._lost.pop(place, None)
        self._ended.discard(place)

    def answered(self, place: Server) -> None:
        """Record an answer: patience starts afresh, and a server that was ``found`` counts as back."""
        self._dark = None
        if place in self._away and not self.was_lost(place):
            seconds = time.monotonic() - self._away.pop(place)
            why = f"it answers again, after {seconds:.0f} s"
            self._tell(ReplicaLine.of(self.role, place.name, "back", why))

    @property
    def away(self) -> int:
        """Count the servers that were lost and have not answered since."""
        return len(self._away)

    @property
    def all_ended(self) -> bool:
        """True if every server is one that we started, whose process is gone, and that was not ``found`` again."""
        return len(self._ended) == len(self.places)

    def ended(self, place: Server, state: State, why: str) -> None:
        """Take out a server that we started and whose process is gone, until it is ``found`` again.

        ``state``: whether it is being restarted or given up.
        """
        self._ended.add(place)
        self._take_out(place, why)
        self._tell(ReplicaLine.of(self.role, place.name, state, why))

    def lost_again(self, place: Server, why: str) -> None:
        """Take out, for REST seconds, a server that we restarted but that cannot be used."""
        self._ended.discard(place)
        self._lost[place] = time.monotonic()
        self._tell(ReplicaLine.of(self.role, place.name, "lost", why))

    def _take_out(self, place: Server, why: str) -> float:
        """Record that a server failed, tell it if that is new, and return the time."""
        now = self._lost[place] = time.monotonic()
        if place not in self._away:
            self._away[place] = now
            self._tell(ReplicaLine.of(self.role, place.name, "lost", why))
        return now

    def lost(self, place: Server, why: str) -> None:
        """Take a server out for REST seconds; raise UserError if none is left and patience has ended."""
        now = self._take_out(place, why)
        if any(self._alive(other) for other in self.places):
            return
        self._dark = now if self._dark is None else self._dark
        if now - self._dark < self.patience or self._returning():
            return
        raise self.unreachable(", ".join(one.name for one in self.places), why)

    def unreachable(self, names: str, why: str) -> UserError:
        """Return the error that ends a run."""
        return UserError(
            f"the {self.role}'s server at {names} does not answer ({why}): start it, then"
            " repeat the same command to resume"
        )

    def forget(self, context: Context) -> None:
        self._home.pop(context.key, None)
