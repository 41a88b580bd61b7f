"""Generation through a server, checked token by token by the project's own boundary."""

from __future__ import annotations

from collections.abc import Iterable

from semspec.engines._base import take
from semspec.types import Answer, Generate, Stops, stops_of


class Writing:
    """An answer as far as it is generated.

    A server stops where a unit may end. Whether one does is decided here, by the same boundary that
    every engine feeds; tokens beyond an end are discarded. That does not change their law: a token
    depends only on those before it.
    """

    def __init__(
        self, ask: Generate, room: int, stop_ids: frozenset[int], look: int, answer: Answer
    ) -> None:
        self.ask, self.stop_ids, self.look, self.answer = ask, stop_ids, look, answer
        self.limit = min(ask.limit, room)
        self.stops = stops_of(ask.boundary)
        answer.finish = "limit" if self.limit < 1 else "scored"

    @property
    def done(self) -> bool:
        return self.answer.finish != "scored"

    def next_limit(self) -> int:
        """Return how many tokens the next request may bring."""
        left = self.limit - len(self.answer.tokens)
        if self.ask.boundary is None:
            return left
        if self.stops.cap is not None:
            left = min(left, self.stops.cap * (self.ask.units - len(self.answer.ends)))
        return left if self.stops.texts or self.stops.cap is not None else min(left, self.look)

    def next_stops(self) -> Stops:
        return Stops() if self.next_limit() == 1 else self.stops

    def take(self, written: Iterable[int]) -> None:
        """Append tokens up to the one that ends the generation."""
        for token in written:
            take(token, self.answer, self.ask, self.limit, self.stop_ids)
            if self.done:
                return
