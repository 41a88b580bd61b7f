"""Several servers of one model: a problem stays where its prefix is cached, and moves when that is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from semspec.engines._sglang.server import Place
from semspec.errors import UserError
from semspec.types import Context

REST = 15.0  # seconds that a lost replica is left alone before it is tried again


def unreachable(role: str, names: str, why: str) -> str:
    """The one line that ends a run."""
    return (
        f"the {role}'s server at {names} does not answer ({why}): start it, then give the same command"
        " to go on from here"
    )


class Replicas:
    def __init__(self, places: Sequence[Place], role: str) -> None:
        assert places
        self.places, self.role = list(places), role
        self._home: dict[int, Place] = {}
        self._lost: dict[int, tuple[float, str]] = {}  # by index: since when, and why

    def of(self, context: Context) -> Place:
        """Where this problem is at home; a new one goes where the fewest are."""
        home = self._home.get(context.key)
        if home is not None and (len(self.places) == 1 or self._alive(home)):
            return home
        alive = [place for place in self.places if self._alive(place)] or self.places
        used = Counter(id(place) for place in self._home.values())
        home = min(alive, key=lambda place: used[id(place)])
        self._home[context.key] = home
        return home

    def _alive(self, place: Place) -> bool:
        since, _ = self._lost.get(self.places.index(place), (-REST, ""))
        return time.monotonic() - since >= REST

    def lost(self, place: Place, why: str) -> None:
        """Takes a replica out for a while; UserError where none is left."""
        self._lost[self.places.index(place)] = (time.monotonic(), why)
        if any(self._alive(other) for other in self.places):
            return
        names = ", ".join(one.name for one in self.places)
        raise UserError(unreachable(self.role, names, why))

    def forget(self, context: Context) -> None:
        self._home.pop(context.key, None)
