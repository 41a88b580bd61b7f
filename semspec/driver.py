"""The driver: answers what plans ask, for one problem or many at a time.

Plans run in lockstep: every waiting question for the same model goes into one batch. A plan that
ends makes room for the next one at once, so that ``concurrency`` problems are always under way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from semspec.protocols import Engine, Plan
from semspec.types import Context, Query, Role

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
    query: Query
    started: float
    model_seconds: float = 0.0


class Driver:
    """Runs plans over engines, one for each role that the plans ask."""

    def __init__(self, engines: Mapping[Role, Engine]) -> None:
        self.engines = engines

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
        batches: dict[Role, list[_Running[T]]] = {}
        for one in running:
            batches.setdefault(one.query.model, []).append(one)
        for role, batch in batches.items():
            asked = time.perf_counter()
            answers = self.engines[role].answer([one.query for one in batch])
            took = time.perf_counter() - asked
            for one, answer in zip(batch, answers, strict=True):
                one.model_seconds += took
                try:
                    one.query = one.plan.send(answer)
                except StopIteration as stop:
                    running.remove(one)
                    self._forget(one.context)
                    seconds = time.perf_counter() - one.started
                    yield Finished(one.context, stop.value, seconds, one.model_seconds)

    def _forget(self, context: Context) -> None:
        for engine in self.engines.values():
            engine.forget(context)
