"""Run plans in lockstep: all waiting queries to the same model go into one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from semspec.decoding.costs import company
from semspec.driver.inbox import Inbox
from semspec.driver.running import Finished, Running
from semspec.driver.way import Turns, Way
from semspec.types import Answer, Query, Role

T = TypeVar("T")
SPARED = 8  # most turns in a row of drafts alone while others wait for the target: a tree takes one per level


@dataclass(slots=True)
class Batch:
    """The queries to one model in a turn, and their answers."""

    queries: Sequence[Query]
    replies: Sequence[Answer | Exception]
    seconds: float  # that the model took
    # that the callers waited: for the slowest model if several ran in parallel
    waited: float


@dataclass(eq=False)
class Lockstep(Way[T]):
    """Runs plans in lockstep."""

    threads: Callable[[], ThreadPoolExecutor] = field(kw_only=True)  # for models in parallel
    _spared: int = field(default=0, init=False)  # turns in a row in which drafts came first

    def turns(self) -> Turns[Finished[T]]:
        while True:
            self.weigh()
            for context, plan in self.admitted():
                one = Running(context, plan)
                done = self.moved(one, None)
                if done is None:
                    self.running.append(one)
                else:  # it asked nothing
                    yield done
            self.give_up()
            if self.running:
                yield from self._turn()
                yield None
            elif self.waiting.over:
                return

    def _turn(self) -> Iterator[Finished[T]]:
        """Answer the queries that wait now, one batch per model."""
        turn = self._next()
        batches = self._ask(turn)
        if self.costs is not None:
            self.costs.resumed()
            self.costs.answered(time.perf_counter())
            for batch in batches.values():
                together = self._together(batch)
                self.passed(batch.queries, batch.replies, batch.seconds, together)
        own, ended = self._hand_out(turn, batches)
        if self.costs is not None:
            self._tell_costs(batches, max(own - self.costs.resumed(), 0.0))
        yield from ended

    def _next(self) -> list[Running[T]]:
        """Return the plans whose queries are answered now.

        If some plans wait for a pass of the target and others draft, drafts come first, so that then all share the pass.
        Reading the target's embeddings, which takes no pass, is part of drafting here. After ``SPARED`` such turns in a row
        all are answered: some rules ask the small model for as long as it is sure.
        """
        if len(self.running) == 1:  # nobody waits for it
            self._spared = 0
            return list(self.running)
        drafting = [
            one
            for one in self.running
            if all(q.model != "target" or not q.passes for q in one.queries)
        ]
        first = 0 < len(drafting) < len(self.running) and self._spared < SPARED
        self._spared = self._spared + 1 if first else 0
        return drafting if first else list(self.running)

    def _ask(self, turn: Sequence[Running[T]]) -> Mapping[Role, Batch]:
        """Ask each model its batch, in parallel if a plan waits for several models."""
        asked: dict[Role, list[Query]] = {}
        for one in turn:
            for query in one.queries:
                asked.setdefault(query.model, []).append(query)
        side_by_side = len(asked) > 1 and any(
            len({query.model for query in one.queries}) > 1 for one in turn
        )
        answering = self._answered if isinstance(self.waiting, Inbox) else self._timed
        began = time.perf_counter()
        if side_by_side:
            answered = list(self.threads().map(answering, asked.items()))
        else:
            answered = [answering(item) for item in asked.items()]
        everything = time.perf_counter() - began
        return {
            role: Batch(queries, replies, took, everything if side_by_side else took)
            for (role, queries), (replies, took) in zip(asked.items(), answered, strict=True)
        }

    def _hand_out(
        self, turn: Sequence[Running[T]], batches: Mapping[Role, Batch]
    ) -> tuple[float, list[Finished[T]]]:
        """Continue the plans with their answers; return the seconds they took and the results of those that ended."""
        replies = {role: iter(batch.replies) for role, batch in batches.items()}
        own, ended = 0.0, list[Finished[T]]()
        for one in turn:
            one.model_seconds += max(batches[query.model].waited for query in one.queries)
            resumed = time.perf_counter()
            done = self.moved(one, [next(replies[query.model]) for query in one.queries])
            own += time.perf_counter() - resumed
            if done is not None:
                self.ended(one)
                ended.append(done)
        return own, ended

    def _tell_costs(self, batches: Mapping[Role, Batch], own: float) -> None:
        """Report the costs of this turn; ``own``: seconds of the plans' own work after the answers."""
        for batch in batches.values():
            together = self._together(batch)
            self.count(batch.queries, batch.replies, batch.seconds, own, together)

    def _together(self, batch: Batch) -> int:
        """Return the number of problems that shared a batch, as the cost model counts them."""
        return company(len(batch.queries), self.concurrency)

    def _timed(self, item: tuple[Role, list[Query]]) -> tuple[Sequence[Answer | Exception], float]:
        role, queries = item
        started = time.perf_counter()
        answers = self.engines[role].answer(queries)
        return answers, time.perf_counter() - started

    def _answered(
        self, item: tuple[Role, list[Query]]
    ) -> tuple[Sequence[Answer | Exception], float]:
        """Answer a batch; an error becomes the answer to every query."""
        started = time.perf_counter()
        try:
            return self._timed(item)
        except Exception as error:
            return [error] * len(item[1]), time.perf_counter() - started
