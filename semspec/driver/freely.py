"""Run plans freely: each continues as soon as its own answer is there."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeVar, cast

from semspec.driver.inbox import Inbox
from semspec.driver.running import Finished, Running
from semspec.driver.way import Turns, Way
from semspec.protocols import Concurrent, Onward
from semspec.types import Answer

T = TypeVar("T")


class Clock:
    """A clock that runs at 1 / (number of running plans), so that the plans' shares add up to wall time."""

    def __init__(self) -> None:
        self.shared, self._last = 0.0, time.perf_counter()

    def tick(self, running: int) -> float:
        """Advance the clock; call it whenever the number of running plans is about to change."""
        now = time.perf_counter()
        self.shared += (now - self._last) / max(running, 1)
        self._last = now
        return self.shared


@dataclass(eq=False)
class Freely(Way[T]):
    """Plans that run freely, over engines that all take queries one by one."""

    # a plan for each of its answers that is there; None: a plan has arrived or was given up
    _told: SimpleQueue[Running[T] | None] = field(default_factory=SimpleQueue, init=False)
    _clock: Clock = field(default_factory=Clock, init=False)

    def turns(self) -> Turns[Finished[T]]:
        if isinstance(self.waiting, Inbox):
            self.waiting.wake_by(lambda: self._told.put(None))
        while True:
            self.weigh()
            for context, plan in self.admitted():
                one = Running(context, plan)
                done = self.moved(one, None, lambda: 0.0)
                if done is not None:
                    yield done
                    continue
                one.begun = self._clock.tick(len(self.running))
                self.running.append(one)
                self._submit(one)
            self.give_up()
            if not self.running:
                if self.waiting.over:
                    return
                continue
            told = self._told.get()
            if told is None or told.gone:
                continue
            told.left -= 1
            if told.left:
                continue
            done = self._go_on(told)
            if done is not None:
                self.ended(told)
                yield done
            else:
                self._submit(told)
                yield None

    def _go_on(self, one: Running[T]) -> Finished[T] | None:
        """Continue a plan whose answers are all there; return its result if it has ended."""
        waited = time.perf_counter() - one.since
        one.model_seconds += waited
        answers = [self._result(future) for future in one.waits]
        for query, answer in zip(one.queries, answers, strict=True):
            # with several queries, or an answer begun before it was asked for, use the server's own time
            stamped = isinstance(answer, Answer) and (len(answers) > 1 or answer.onward)
            own = answer.seconds if isinstance(answer, Answer) and stamped else waited
            # seconds under two loads would be no price of either
            if one.beside == self._load:
                self.passed([query], [answer], own, one.beside)
                self.count([query], [answer], own, 0.0, one.beside)
        if self.costs is not None:
            self.costs.answered(time.perf_counter())
        return self.moved(one, answers, lambda: self._clock.tick(len(self.running)) - one.begun)

    @property
    def _load(self) -> int:
        """The number of problems under way, as the cost model counts them."""
        changing = self.costs.load if self.costs is not None else 0
        return changing or self.concurrency

    def _submit(self, one: Running[T]) -> None:
        one.since, one.left, one.beside = time.perf_counter(), len(one.queries), self._load
        one.waits = []
        asked = {query.model for query in one.queries}
        for role, engine in self.engines.items():  # stop engines that write onward unasked
            if role not in asked and isinstance(engine, Onward):
                engine.halt(one.context)
        for query in one.queries:
            engine = cast(Concurrent, self.engines[query.model])  # checked by ``Driver.free``
            one.waits.append(engine.submit(query))
        for future in one.waits:
            future.add_done_callback(lambda _: self._told.put(one))

    def _result(self, future: Future[Answer]) -> Answer | Exception:
        """Return an answer; with an inbox, return an error instead of raising it."""
        try:
            return future.result()
        except Exception as error:
            if not isinstance(self.waiting, Inbox):
                raise
            return error
