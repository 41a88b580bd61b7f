"""Ask for long answers in slices, so that other requests get their turn and readers need not wait.

A token depends only on those before it, and a problem's random numbers travel in the query. So a sliced answer has
the same distribution as a whole one, and the same tokens if the engine samples with the query's numbers.

Every slice costs a query. If the caller can tell whether anybody waits (``pause``), answers stay in one piece as long
as nobody does. Queries that hold up nobody and have no reader (``at_once``) are never sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from semspec.deferred import torch
from semspec.protocols import Plan
from semspec.types import Answer, Boundary, Generate, Query, Role, Stops, What, stops_of

T = TypeVar("T")
Heard = Callable[[Query, int], None]
Pause = Callable[[], bool]
JOINED = {What.PROBS, What.LOGITS, What.LOGPROBS, What.TOP_K, What.HIDDEN}
"""Reads with one row per generated token, so that two slices can be joined."""


class Listening:
    """A boundary that also reports every token fed to it."""

    def __init__(self, boundary: Boundary | None, heard: Callable[[int], None]) -> None:
        self._boundary, self._heard = boundary, heard

    @property
    def stops(self) -> Stops:
        return Stops(never=True) if self._boundary is None else stops_of(self._boundary)

    def feed(self, token: int) -> int | None:
        self._heard(token)
        return None if self._boundary is None else self._boundary.feed(token)


class _Part:
    """A query asked in slices, and its answer so far."""

    def __init__(
        self, query: Query, most: int, heard: Heard | None, pause: Pause | None, at_once: bool
    ) -> None:
        self.query, self.most, self.pause = query, most, pause
        self.answer: Answer | None = None
        self.done = False
        ask = query.generate
        self.boundary = None if ask is None else ask.boundary
        if ask is not None and heard is not None and query.purpose == "write":
            self.boundary = Listening(ask.boundary, partial(heard, query))
        joined = all(read.what in JOINED for read in query.reads)
        inside = ask is not None and ask.inside is not None
        rows = query.rows_from is not None
        held = ask is not None and ask.grammar is not None  # a grammar restarts with each query
        self.whole = at_once or ask is None or inside or held or rows or not joined

    def ask(self) -> Query:
        """Return the query for the next slice."""
        query, ask, answer = self.query, self.query.generate, self.answer
        if ask is None or (self.whole and self.boundary is ask.boundary):
            return query
        if self.whole:
            return replace(query, generate=replace(ask, boundary=self.boundary))
        written = answer.tokens if answer else []
        units = ask.units - len(answer.ends if answer else ())
        limit, pause = ask.limit - len(written), self.pause
        onward = max(ask.onward - len(written), 0)
        if pause is None or pause():
            limit, pause, onward = min(self.most, limit), None, 0
        asking = Generate(limit, self.boundary, units, pause=pause, gives_way=True, onward=onward)
        return replace(query, tokens=[*query.tokens, *written], generate=asking)

    def take(self, asked: Query, answer: Answer) -> None:
        """Add a slice, and set ``done`` if it was the last one."""
        self.answer = answer if self.answer is None else _joined(self.answer, answer)
        ask, part = self.query.generate, asked.generate
        on = ("limit", "paused")
        self.done = self.whole or ask is None or part is None or answer.finish not in on
        if ask is not None and ask.gives_way and answer.finish == "paused":
            self.done = True  # the caller accepts a shorter answer
        if answer.finish == "limit" and not self.done and ask is not None and part is not None:
            # fewer tokens than asked: the engine had no more room, or a bridge cut the answer
            short = len(answer.tokens) < part.limit
            self.done = short or len(self.answer.tokens) >= ask.limit


def sliced(
    plan: Plan[T],
    most: int,
    heard: Heard | None = None,
    pause: Pause | None = None,
    at_once: Container[Role] = (),
) -> Plan[T]:
    """Run a plan whose queries generate at most ``most`` tokens at a time.

    ``heard`` gets every token that the target writes as it is generated, with its query. ``pause`` is called before each
    slice and, by engines that support it, after each token; while it returns False, a slice has no limit. Queries to the
    models in ``at_once``, and queries with reads over whole units, are not sliced.
    """
    try:
        asked = next(plan)
        while True:
            reply: Any
            try:
                if isinstance(asked, Query) and asked.generate is None:  # it only reads
                    reply = yield asked
                else:
                    queries = asked if isinstance(asked, tuple) else (asked,)
                    parts = [
                        _Part(one, most, heard, pause, one.model in at_once) for one in queries
                    ]
                    yield from _filled(parts, isinstance(asked, tuple))
                    answers = tuple(part.answer for part in parts)
                    reply = answers if isinstance(asked, tuple) else answers[0]
            except GeneratorExit:
                plan.close()
                raise
            except Exception as error:  # an engine's error, which the plan may handle
                asked = plan.throw(error)
                continue
            asked = plan.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _filled(parts: Sequence[_Part], several: bool) -> Plan[None]:
    """Ask slice by slice, side by side, until every answer is complete."""
    while left := [part for part in parts if not part.done]:
        asking = [part.ask() for part in left]
        reply: Any = yield tuple(asking) if several else asking[0]
        for part, query, answer in zip(left, asking, reply if several else (reply,), strict=True):
            part.take(query, answer)


def _joined(first: Answer, then: Answer) -> Answer:
    before = len(first.tokens)
    return Answer(
        tokens=[*first.tokens, *then.tokens],
        ends=[*first.ends, *(before + end for end in then.ends)],
        finish=then.finish,
        values={read: _rows(value, then.values[read]) for read, value in first.values.items()},
        fed=first.fed + then.fed,
        cached=first.cached,  # what later slices find in the cache, this answer put there
        seconds=first.seconds + then.seconds,
        onward=first.onward or then.onward,
    )


def _rows(first: Any, then: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(_rows(one, two) for one, two in zip(first, then, strict=True))
    return torch.cat([first, then])
