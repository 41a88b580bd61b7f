"""The driver: answer what plans ask, for one problem or many at a time, and take the times.

An engine in this process answers batches. Plans then run in lockstep: every waiting question for the
same model goes into one batch. A plan that ends makes room for the next one at once, so that
``concurrency`` problems are always under way. Where a plan asks two models at the same time
(drafting ahead), their batches run side by side.

Servers take every question as it comes (``protocols.Concurrent``) and batch by themselves. Plans
then run freely: each goes on as soon as its own answer is there, and a slow one holds up nobody.

Plans read no clock. An engine stamps each answer with the seconds of its pass; ``Timed`` stamps each
draft with the seconds of the drafter's own work; ``Finished`` has those of the whole problem.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar, cast

from semspec.decoding.plans import tapped
from semspec.protocols import Concurrent, DraftSession, Engine, Plan
from semspec.types import Answer, Context, Draft, Query, Role, Room, Round, Seen

T = TypeVar("T")
Turns: TypeAlias = Generator[T | None, None, None]
"""Results as they are there, and None for every turn in between."""


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """A plan that has ended."""

    context: Context
    value: T
    seconds: float  # wall time from its first step to its last
    model_seconds: float  # of these, waiting for models
    # its share of the wall time: at each moment the plans under way share alike; None in lockstep
    share: float | None = None


@dataclass(slots=True)
class _Running(Generic[T]):
    context: Context
    plan: Plan[T]
    asked: Query | tuple[Query, ...]
    started: float
    model_seconds: float = 0.0
    # running freely
    begun: float = 0.0  # the shared clock when it started
    waits: list[Future[Answer]] = field(default_factory=list)
    left: int = 0  # answers that are not there yet
    since: float = 0.0  # when it asked

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.asked if isinstance(self.asked, tuple) else (self.asked,)

    def send(self, answers: Sequence[Answer]) -> None:
        """Give the plan its answers; raises StopIteration when the plan has ended."""
        reply = tuple(answers) if isinstance(self.asked, tuple) else answers[0]
        self.asked = self.plan.send(reply)


class Timed:
    """A drafter's session that stamps its drafts with the seconds of its own work.

    Waiting for answers is no work of its own: their seconds come with the answers.
    """

    def __init__(self, session: DraftSession) -> None:
        self.session, self.watches = session, session.watches

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        seconds, resumed = 0.0, time.perf_counter()

        def pause(queries: Sequence[Query] = ()) -> None:
            nonlocal seconds
            seconds += time.perf_counter() - resumed

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


class _Clock:
    """A clock that runs at one over the number of plans under way, so that shares sum to wall time."""

    def __init__(self) -> None:
        self.shared, self._last = 0.0, time.perf_counter()

    def tick(self, running: int) -> float:
        """Bring the clock up to date; call it whenever the number of plans is about to change."""
        now = time.perf_counter()
        self.shared += (now - self._last) / max(running, 1)
        self._last = now
        return self.shared


def _admitted(
    waiting: Iterator[tuple[Context, Plan[T]]], running: Sequence[_Running[T]], concurrency: int
) -> Iterator[tuple[Context, Plan[T]]]:
    """Yield plans while there is room; the caller adds each to ``running`` before taking the next."""
    while len(running) < concurrency and (item := next(waiting, None)) is not None:
        yield item


class Driver:
    """Run plans over engines, one for each role that the plans ask."""

    def __init__(self, engines: Mapping[Role, Engine]) -> None:
        self.engines = engines
        self._pool: ThreadPoolExecutor | None = None  # made when models first run side by side

    @property
    def free(self) -> bool:
        """True if plans run freely: every engine takes questions one by one."""
        return all(isinstance(engine, Concurrent) for engine in self.engines.values())

    def run(
        self, plans: Iterable[tuple[Context, Plan[T]]], concurrency: int = 1
    ) -> Iterator[Finished[T]]:
        """Yield each plan's result as it ends; new plans are taken from ``plans`` only when needed."""
        with closing(self.turns(plans, concurrency)) as turns:
            for done in turns:
                if done is not None:
                    yield done

    def turns(
        self, plans: Iterable[tuple[Context, Plan[T]]], concurrency: int = 1
    ) -> Turns[Finished[T]]:
        """Run plans as ``run`` does, and yield None whenever answers have moved a plan on."""
        running: list[_Running[T]] = []
        ways = self._freely if self.free else self._in_lockstep
        try:
            yield from ways(iter(plans), concurrency, running)
        finally:
            for left in running:
                left.plan.close()
                self._forget(left.context)

    # ---- in lockstep ----------------------------------------------------------------------------

    def _in_lockstep(
        self,
        waiting: Iterator[tuple[Context, Plan[T]]],
        concurrency: int,
        running: list[_Running[T]],
    ) -> Turns[Finished[T]]:
        while True:
            for context, plan in _admitted(waiting, running, concurrency):
                started = time.perf_counter()
                try:
                    running.append(_Running(context, plan, next(plan), started))
                except StopIteration as stop:  # it had nothing to ask
                    yield Finished(context, stop.value, time.perf_counter() - started, 0.0)
            if not running:
                return
            yield from self._turn(running)
            yield None

    def _turn(self, running: list[_Running[T]]) -> Iterator[Finished[T]]:
        """Answer every question that is waiting now, one batch for each model."""
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
            answered = list(self._pool.map(self._timed, batches.items()))
        else:
            answered = [self._timed(item) for item in batches.items()]
        everything = time.perf_counter() - asked
        took = {
            role: everything if side_by_side else t
            for role, (_, t) in zip(batches, answered, strict=True)
        }
        answers = {role: iter(a) for role, (a, _) in zip(batches, answered, strict=True)}
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

    # ---- freely ---------------------------------------------------------------------------------

    def _freely(
        self,
        waiting: Iterator[tuple[Context, Plan[T]]],
        concurrency: int,
        running: list[_Running[T]],
    ) -> Turns[Finished[T]]:
        answered: SimpleQueue[_Running[T]] = SimpleQueue()
        clock = _Clock()
        while True:
            for context, plan in _admitted(waiting, running, concurrency):
                started = time.perf_counter()
                try:
                    asked = next(plan)
                except StopIteration as stop:
                    yield Finished(context, stop.value, time.perf_counter() - started, 0.0, 0.0)
                    continue
                one = _Running(context, plan, asked, started, begun=clock.tick(len(running)))
                running.append(one)
                self._submit(one, answered)
            if not running:
                return
            one = answered.get()
            one.left -= 1
            if one.left:
                continue
            one.model_seconds += time.perf_counter() - one.since
            try:
                one.send([future.result() for future in one.waits])
            except StopIteration as stop:
                share = clock.tick(len(running)) - one.begun
                running.remove(one)
                self._forget(one.context)
                seconds = time.perf_counter() - one.started
                yield Finished(one.context, stop.value, seconds, one.model_seconds, share)
            else:
                self._submit(one, answered)
                yield None

    def _submit(self, one: _Running[T], answered: SimpleQueue[_Running[T]]) -> None:
        one.since, one.left = time.perf_counter(), len(one.queries)
        one.waits = []
        for query in one.queries:
            engine = cast(Concurrent, self.engines[query.model])  # as ``free`` has found
            one.waits.append(engine.submit(query))
        for future in one.waits:
            future.add_done_callback(lambda _: answered.put(one))

    def _forget(self, context: Context) -> None:
        for engine in self.engines.values():
            engine.forget(context)
