"""Run plans: in lockstep, or freely if every engine takes queries one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

from semspec.decoding.costs import Costs
from semspec.driver.freely import Freely
from semspec.driver.inbox import Given, Inbox
from semspec.driver.lockstep import Lockstep
from semspec.driver.running import Finished
from semspec.driver.way import Turns, Way
from semspec.protocols import Concurrent, Engine, Plan
from semspec.types import Context, Role

T = TypeVar("T")


class Driver:
    """Runs plans over engines, one for each role that the plans ask.

    ``costs`` receives the cost of each query, including what its plan did afterwards.
    """

    def __init__(self, engines: Mapping[Role, Engine], costs: Costs | None = None) -> None:
        self.engines, self.costs = engines, costs
        self._pool: ThreadPoolExecutor | None = None  # created when models first run in parallel

    @property
    def free(self) -> bool:
        """True if plans run freely: every engine takes queries one by one."""
        return all(isinstance(engine, Concurrent) for engine in self.engines.values())

    def run(
        self, plans: Iterable[tuple[Context, Plan[T]]] | Inbox[T], concurrency: int = 1
    ) -> Iterator[Finished[T]]:
        """Yield each plan's result as it ends; take new plans from ``plans`` only when needed."""
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
        """Run plans as ``run`` does, and also yield None whenever answers have advanced a plan.

        With an inbox, run what arrives until it is closed; an error then ends only its own plan, which may also catch it.
        ``forget`` is called with the context of each finished plan, by default to let the engines forget it.
        """
        waiting = plans if isinstance(plans, Inbox) else Given(plans)
        if self.costs is not None:
            self.costs.remote = self.free
        given = self.engines, self.costs, waiting, concurrency, forget or self.forget
        way: Way[T] = Freely(*given) if self.free else Lockstep(*given, threads=self._threads)
        try:
            yield from way.turns()
        finally:
            way.close()

    def forget(self, context: Context) -> None:
        """Let the engines forget a context."""
        for engine in self.engines.values():
            engine.forget(context)

    def _threads(self) -> ThreadPoolExecutor:
        """Return the threads on which models run in parallel."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.engines))
        return self._pool
