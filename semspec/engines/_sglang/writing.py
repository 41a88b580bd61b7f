"""Generation through a server, checked token by token by the project's own boundary."""

from __future__ import annotations

from collections.abc import Iterable

from semspec.types import Finish, Generate, Stops, stops_of


class Writing:
    """The tokens generated so far, and whether they are enough.

    A server stops where a unit may end. Whether one does end is decided here, by the same boundary
    that every engine feeds; tokens beyond an end are discarded. That does not change their law: a token
    depends only on those before it.
    """

    def __init__(self, ask: Generate, room: int, stop_ids: frozenset[int], look: int) -> None:
        self.ask, self.stop_ids, self.look = ask, stop_ids, look
        self.limit = min(ask.limit, room)
        self.tokens: list[int] = []
        self.ends: list[int] = []
        self.finish: Finish = "limit"
        self.done = self.limit < 1
        self.stops = stops_of(ask.boundary)

    def next_limit(self) -> int:
        """Return how many tokens the next request may bring."""
        left = self.limit - len(self.tokens)
        if self.ask.boundary is None:
            return left
        if self.stops.cap is not None:
            left = min(left, self.stops.cap * (self.ask.units - len(self.ends)))
        return left if self.stops.texts or self.stops.cap is not None else min(left, self.look)

    def next_stops(self) -> Stops:
        return Stops() if self.next_limit() == 1 else self.stops

    def take(self, written: Iterable[int]) -> None:
        """Append tokens up to the one that ends the generation, like the hf engine's ``Writer``."""
        for token in written:
            boundary = self.ask.boundary
            end = None if boundary is None else boundary.feed(token)
            self.tokens.append(token)
            if end is not None:
                self.ends.append(len(self.tokens) + end)
            if token in self.stop_ids:
                self.done, self.finish = True, "eos"
            elif boundary is not None and len(self.ends) == self.ask.units:
                self.done, self.finish = True, "units"
            elif len(self.tokens) >= self.limit:
                self.done = True
            if self.done:
                return
