"""The driver: answers what plans ask, for one problem or many at a time.

Plans run in lockstep: every waiting question for the same model goes into one batch. A plan that
ends makes room for the next one at once, so that ``concurrency`` problems are always under way.
Where a plan asks two models at the same time (drafting ahead), their batches run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from semspec.protocols import Engine, Plan
from semspec.types import Answer, Context, Query, Role

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """A plan that has ended."""

    context: Context
    value: T
    seconds: float  # wall time from its first step to its last
    model_seconds: float  # of these, waiting for models


@dataclass(slots=True)
class _Running(Generic[T]):
    context: Context
    plan: Plan[T]
    asked: Query | tuple[Query, ...]
    started: float
    model_seconds: float = 0.0

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.asked if isinstance(self.asked, tuple) else (self.asked,)

    def send(self, answers: Sequence[Answer]) -> None:
        """Hands the answers over; raises StopIteration where the plan has ended."""
        told = tuple(answers) if isinstance(self.asked, tuple) else answers[0]
        self.asked = self.plan.send(told)


class Driver:
    """Runs plans over engines, one for each role that the plans ask."""

    def __init__(self, engines: Mapping[Role, Engine]) -> None:
        self.engines = engines
        self._pool: ThreadPoolExecutor | None = None  # made when models first run side by side

    def run(
        self, plans: Iterable[tuple[Context, Plan[T]]], concurrency: int = 1
    ) -> Iterator[Finished[T]]:
        """Yields each plan's result as it ends; takes new plans from ``plans`` only when needed."""
        waiting = iter(plans)
        running: list[_Running[T]] = []
        exhausted = False
        try:
            while True:
                while not exhausted and len(running) < concurrency:
                    item = next(waiting, None)
                    if item is None:
                        exhausted = True
                        break
                    context, plan = item
                    started = time.perf_counter()
                    try:
                        running.append(_Running(context, plan, next(plan), started))
                    except StopIteration as stop:  # it had nothing to ask
                        yield Finished(context, stop.value, time.perf_counter() - started, 0.0)
                if not running:
                    return
                yield from self._turn(running)
        finally:
            for left in running:
                left.plan.close()
                self._forget(left.context)

    def _turn(self, running: list[_Running[T]]) -> Iterator[Finished[T]]:
        """Answers every question that is waiting now, one batch for each model."""
        turn = list(running)
        batches: dict[Role, list[Query]] = {}
        for one in turn:
            for query in one.queries:
                batches.setdefault(query.model, []).append(query)
        side_by_side = any(len({q.model for q in one.queries}) > 1 for one in turn)
        asked = time.perf_counter()
        if side_by_side:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(len(self.engines))
            told = list(self._pool.map(self._timed, batches.items()))
        else:
            told = [self._timed(item) for item in batches.items()]
        everything = time.perf_counter() - asked
        took = {
            role: everything if side_by_side else t
            for role, (_, t) in zip(batches, told, strict=True)
        }
        answers = {role: iter(a) for role, (a, _) in zip(batches, told, strict=True)}
        for one in turn:
            one.model_seconds += max(took[query.model] for query in one.queries)
            try:
                one.send([next(answers[query.model]) for query in one.queries])
            except StopIteration as stop:
                running.remove(one)
                self._forget(one.context)
                seconds = time.perf_counter() - one.started
                yield Finished(one.context, stop.value, seconds, one.model_seconds)

    def _timed(self, item: tuple[Role, list[Query]]) -> tuple[list[Answer], float]:
        role, queries = item
        started = time.perf_counter()
        answers = self.engines[role].answer(queries)
        return answers, time.perf_counter() - started

    def _forget(self, context: Context) -> None:
        for engine in self.engines.values():
            engine.forget(context)
