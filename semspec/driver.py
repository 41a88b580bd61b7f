"""The driver: answer what plans ask, for one problem or many at a time, and take the times.

An engine in this process answers batches. Plans then run in lockstep: every waiting question for the
same model goes into one batch. A plan that ends makes room for the next one at once, so that
``concurrency`` problems are always under way. Where a plan asks two models at the same time
(drafting ahead), their batches run side by side.

Servers take every question as it comes (``protocols.Concurrent``) and batch by themselves. Plans
then run freely: each goes on as soon as its own answer is there, and a slow one holds up nobody.

Plans are given all at once, or they arrive while others run (``Inbox``): a plan that arrives begins at the next
turn, and what goes wrong with it is its own affair.

Plans read no clock. An engine stamps each answer with the seconds of its pass; ``Timed`` stamps each
draft with the seconds of the drafter's own work; ``Finished`` has those of the whole problem.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar, cast

from semspec.decoding.costs import Costs, company
from semspec.decoding.plans import tapped
from semspec.protocols import Concurrent, DraftSession, Engine, Plan
from semspec.types import Answer, Context, Draft, Query, Role, Room, Round, Seen

T = TypeVar("T")
SPARED = 8  # turns of drafts alone while others wait for the target: a tree of drafts takes one for each level
Turns: TypeAlias = Generator[T | None, None, None]
"""Results as they are there, and None for every turn in between."""


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """A plan that has ended."""

    context: Context
    value: T  # None where ``error`` says why there is none
    seconds: float  # wall time from its first step to its last
    model_seconds: float  # of these, waiting for models
    # its share of the wall time: at each moment the plans under way share alike; None in lockstep
    share: float | None = None
    error: Exception | None = None  # of a plan from an inbox: the others go on


class Inbox(Generic[T]):
    """Plans that arrive from other threads while earlier ones run, and word of those that are given up.

    Closing it ends the driver once everything in it is done.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Context, Plan[T]]] = deque()
        self._dropped: list[Context] = []
        self._closed = False
        self._wake: Callable[[], object] = lambda: None

    def put(self, context: Context, plan: Plan[T]) -> None:
        """Add a plan; it begins as soon as there is room."""
        with self._changed:
            assert not self._closed, "the inbox is closed"
            self._waiting.append((context, plan))
        self._tell()

    def drop(self, context: Context) -> bool:
        """Give a plan up, whether it runs or waits; True if it had not begun, so that nothing will be heard of it."""
        with self._changed:
            for item in self._waiting:
                if item[0] is context:
                    self._waiting.remove(item)
                    item[1].close()
                    return True
            self._dropped.append(context)
        self._tell()
        return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
        self._tell()

    def __len__(self) -> int:
        """Count the plans that have not begun."""
        return len(self._waiting)

    # ---- for the driver -------------------------------------------------------------------------

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Name what wakes a driver that waits for something else."""
        self._wake = wake

    def take(self, idle: bool) -> tuple[Context, Plan[T]] | None:
        """Return the next plan, or None; an ``idle`` driver waits until something has changed."""
        with self._changed:
            while idle and not (self._waiting or self._closed):
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def given_up(self) -> list[Context]:
        """Return the contexts of the plans that were given up since the last call."""
        if not self._dropped:
            return []
        with self._changed:
            dropped, self._dropped = self._dropped, []
        return dropped

    @property
    def over(self) -> bool:
        return self._closed and not self._waiting

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._wake()


class _Given(Generic[T]):
    """Plans that are all there from the beginning; they are taken only when needed."""

    def __init__(self, plans: Iterable[tuple[Context, Plan[T]]]) -> None:
        self._plans, self.over = iter(plans), False

    def take(self, idle: bool) -> tuple[Context, Plan[T]] | None:
        item = next(self._plans, None)
        self.over = item is None
        return item

    def given_up(self) -> list[Context]:
        return []


@dataclass(slots=True, eq=False)
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
    gone: bool = False  # given up: what still comes for it is of no use

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.asked if isinstance(self.asked, tuple) else (self.asked,)

    def send(self, answers: Sequence[Answer | Exception]) -> None:
        """Give the plan its answers, or the first error; raises StopIteration when the plan has ended."""
        error = next((one for one in answers if isinstance(one, Exception)), None)
        if error is not None:
            self.asked = self.plan.throw(error)
            return
        reply = tuple(answers) if isinstance(self.asked, tuple) else answers[0]
        self.asked = self.plan.send(reply)

    def over(self, value: T, share: float | None, error: Exception | None = None) -> Finished[T]:
        seconds = time.perf_counter() - self.started
        return Finished(self.context, value, seconds, self.model_seconds, share, error)


class Timed:
    """A drafter's session that stamps its drafts with the seconds of its own work.

    Waiting for answers is no work of its own: their seconds come with the answers.
    """

    def __init__(self, session: DraftSession, costs: Costs | None = None) -> None:
        self.session, self.watches, self.costs = session, session.watches, costs

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        seconds, resumed = 0.0, time.perf_counter()

        def pause(queries: Sequence[Query] = ()) -> None:
            nonlocal seconds
            spent = time.perf_counter() - resumed
            seconds += spent
            if self.costs is not None:
                self.costs.drafted(spent)

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
    waiting: Inbox[T] | _Given[T], running: Sequence[_Running[T]], concurrency: int
) -> Iterator[tuple[Context, Plan[T]]]:
    """Yield plans while there is room; the caller adds each to ``running`` before taking the next."""
    while len(running) < concurrency and (item := waiting.take(not running)) is not None:
        yield item


class Driver:
    """Run plans over engines, one for each role that the plans ask.

    ``costs`` are told what each question has cost, together with what its plan did afterwards.
    """

    def __init__(self, engines: Mapping[Role, Engine], costs: Costs | None = None) -> None:
        self.engines, self.costs = engines, costs
        self._pool: ThreadPoolExecutor | None = None  # made when models first run side by side
        self._spared = 0  # turns in a row in which drafts came first

    @property
    def free(self) -> bool:
        """True if plans run freely: every engine takes questions one by one."""
        return all(isinstance(engine, Concurrent) for engine in self.engines.values())

    def run(
        self, plans: Iterable[tuple[Context, Plan[T]]] | Inbox[T], concurrency: int = 1
    ) -> Iterator[Finished[T]]:
        """Yield each plan's result as it ends; new plans are taken from ``plans`` only when needed."""
        with closing(self.turns(plans, concurrency)) as turns:
            for done in turns:
                if done is not None:
                    yield done

    def turns(
        self,
        plans: Iterable[tuple[Context, Plan[T]]] | Inbox[T],
        concurrency: int = 1,
        forget: Callable[[Context], None] | None = None,
    ) -> Turns[Finished[T]]:
        """Run plans as ``run`` does, and yield None whenever answers have moved a plan on.

        From an inbox it runs what arrives, until that is closed; an error then ends its own plan alone, which may also
        catch it. ``forget`` is called with the context of a plan that has ended; the engines forget it unless given.
        """
        running: list[_Running[T]] = []
        waiting = plans if isinstance(plans, Inbox) else _Given(plans)
        forget = forget or self.forget
        ways = self._freely if self.free else self._in_lockstep
        try:
            yield from ways(waiting, concurrency, running, forget)
        finally:
            for left in running:
                left.plan.close()
                forget(left.context)

    def forget(self, context: Context) -> None:
        """Let the engines forget a context."""
        for engine in self.engines.values():
            engine.forget(context)

    def _moved(
        self,
        one: _Running[T],
        answers: Sequence[Answer | Exception] | None,
        waiting: Inbox[T] | _Given[T],
        share: Callable[[], float | None] = lambda: None,
    ) -> Finished[T] | None:
        """Let a plan go on, with answers or from its beginning; return what became of it if it has ended."""
        try:
            if answers is None:
                one.asked = next(one.plan)
            else:
                one.send(answers)
        except StopIteration as stop:
            return one.over(stop.value, share())
        except Exception as error:
            if not isinstance(waiting, Inbox):
                raise
            return one.over(cast(T, None), share(), error)
        return None

    def _give_up(
        self,
        waiting: Inbox[T] | _Given[T],
        running: list[_Running[T]],
        forget: Callable[[Context], None],
    ) -> None:
        """Close the plans that were given up."""
        for context in waiting.given_up():
            for one in [one for one in running if one.context is context]:
                one.gone = True
                running.remove(one)
                one.plan.close()
                forget(context)

    # ---- in lockstep ----------------------------------------------------------------------------

    def _in_lockstep(
        self,
        waiting: Inbox[T] | _Given[T],
        concurrency: int,
        running: list[_Running[T]],
        forget: Callable[[Context], None],
    ) -> Turns[Finished[T]]:
        while True:
            self._weigh(waiting, running, concurrency)
            for context, plan in _admitted(waiting, running, concurrency):
                one = _Running(context, plan, (), time.perf_counter())
                done = self._moved(one, None, waiting)
                if done is None:
                    running.append(one)
                else:  # it had nothing to ask
                    yield done
            self._give_up(waiting, running, forget)
            if running:
                for done in self._turn(running, waiting, forget, concurrency):
                    yield done
                yield None
            elif waiting.over:
                return

    def _turn(
        self,
        running: list[_Running[T]],
        waiting: Inbox[T] | _Given[T],
        forget: Callable[[Context], None],
        concurrency: int,
    ) -> Iterator[Finished[T]]:
        """Answer the questions that are waiting now, one batch for each model.

        Drafts come first, where others wait for the target: then both wait for the target together. After ``SPARED`` such turns in
        a row the others get theirs: some rules ask the small model for as long as it is sure.
        """
        drafting = [one for one in running if all(q.model != "target" for q in one.queries)]
        first = 0 < len(drafting) < len(running) and self._spared < SPARED
        self._spared = self._spared + 1 if first else 0
        turn = drafting if first else list(running)
        batches: dict[Role, list[Query]] = {}
        for one in turn:
            for query in one.queries:
                batches.setdefault(query.model, []).append(query)
        side_by_side = any(len({q.model for q in one.queries}) > 1 for one in turn)
        answering = self._answered if isinstance(waiting, Inbox) else self._timed
        asked = time.perf_counter()
        if side_by_side:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(len(self.engines))
            answered = list(self._pool.map(answering, batches.items()))
        else:
            answered = [answering(item) for item in batches.items()]
        everything = time.perf_counter() - asked
        took = {
            role: everything if side_by_side else t
            for role, (_, t) in zip(batches, answered, strict=True)
        }
        answers = {role: iter(a) for role, (a, _) in zip(batches, answered, strict=True)}
        own, ended = 0.0, list[Finished[T]]()
        if self.costs is not None:
            self.costs.resumed()
            self.costs.answered(time.perf_counter())
        for one in turn:
            one.model_seconds += max(took[query.model] for query in one.queries)
            resumed = time.perf_counter()
            done = self._moved(one, [next(answers[query.model]) for query in one.queries], waiting)
            own += time.perf_counter() - resumed
            if done is not None:
                running.remove(one)
                forget(one.context)
                ended.append(done)
        if self.costs is not None:
            own = max(own - self.costs.resumed(), 0.0)
            for queries, (replies, spent) in zip(batches.values(), answered, strict=True):
                together = company(len(queries), concurrency)
                self._count(queries, replies, spent, own, together)
        yield from ended

    def _weigh(
        self, waiting: Inbox[T] | _Given[T], running: Sequence[_Running[T]], concurrency: int
    ) -> None:
        """Let the cost model know how many plans are going to be under way, where that changes.

        Plans that are all given at once become fewer at the end. A recorded table decides as if they did not: what becomes of a
        problem then depends on it alone.
        """
        if self.costs is None:
            return
        if isinstance(waiting, Inbox):
            under_way = len(running) + len(waiting)
        elif self.costs.fixed or concurrency == 1:
            return
        else:
            under_way = len(running) if waiting.over else concurrency
        self.costs.load = company(min(under_way, concurrency), concurrency)

    def _count(
        self,
        queries: Sequence[Query],
        replies: Sequence[Answer | Exception],
        seconds: float,
        own: float,
        together: int,
    ) -> None:
        """Tell the cost model what questions of one model have taken, if they were answered."""
        answers = [reply for reply in replies if isinstance(reply, Answer)]
        if self.costs is not None and len(answers) == len(queries):
            pairs = list(zip(queries, answers, strict=True))
            self.costs.took(pairs, seconds, own, together)

    def _timed(self, item: tuple[Role, list[Query]]) -> tuple[Sequence[Answer | Exception], float]:
        role, queries = item
        started = time.perf_counter()
        answers = self.engines[role].answer(queries)
        return answers, time.perf_counter() - started

    def _answered(
        self, item: tuple[Role, list[Query]]
    ) -> tuple[Sequence[Answer | Exception], float]:
        """Answer a batch; an error is the answer of all who asked."""
        started = time.perf_counter()
        try:
            return self._timed(item)
        except Exception as error:
            return [error] * len(item[1]), time.perf_counter() - started

    # ---- freely ---------------------------------------------------------------------------------

    def _freely(
        self,
        waiting: Inbox[T] | _Given[T],
        concurrency: int,
        running: list[_Running[T]],
        forget: Callable[[Context], None],
    ) -> Turns[Finished[T]]:
        answered: SimpleQueue[_Running[T] | None] = SimpleQueue()
        clock = _Clock()
        if isinstance(waiting, Inbox):
            waiting.wake_by(lambda: answered.put(None))
        while True:
            self._weigh(waiting, running, concurrency)
            for context, plan in _admitted(waiting, running, concurrency):
                one = _Running(context, plan, (), time.perf_counter())
                done = self._moved(one, None, waiting, lambda: 0.0)
                if done is not None:
                    yield done
                    continue
                one.begun = clock.tick(len(running))
                running.append(one)
                self._submit(one, answered)
            self._give_up(waiting, running, forget)
            if not running:
                if waiting.over:
                    return
                continue
            told = answered.get()
            if told is None or told.gone:  # something has arrived, or was given up
                continue
            told.left -= 1
            if told.left:
                continue
            waited = time.perf_counter() - told.since
            told.model_seconds += waited

            def share(one: _Running[T] = told) -> float:
                return clock.tick(len(running)) - one.begun

            answers = [_result(future, waiting) for future in told.waits]
            for query, answer in zip(told.queries, answers, strict=True):
                # of several questions, each by what its own server says
                own = answer.seconds if len(answers) > 1 and isinstance(answer, Answer) else waited
                load = self.costs.load if self.costs is not None else 0
                self._count([query], [answer], own, 0.0, load or concurrency)
            if self.costs is not None:
                self.costs.answered(time.perf_counter())
            done = self._moved(told, answers, waiting, share)
            if done is not None:
                running.remove(told)
                forget(told.context)
                yield done
            else:
                self._submit(told, answered)
                yield None

    def _submit(self, one: _Running[T], answered: SimpleQueue[_Running[T] | None]) -> None:
        one.since, one.left = time.perf_counter(), len(one.queries)
        one.waits = []
        for query in one.queries:
            engine = cast(Concurrent, self.engines[query.model])  # as ``free`` has found
            one.waits.append(engine.submit(query))
        for future in one.waits:
            future.add_done_callback(lambda _: answered.put(one))


def _result(future: Future[Answer], waiting: object) -> Answer | Exception:
    """Return an answer; where plans come from an inbox, an error instead of raising it."""
    try:
        return future.result()
    except Exception as error:
        if not isinstance(waiting, Inbox):
            raise
        return error
