"""What both ways of running plans share: running plans, waiting plans, and results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar, cast

from semspec.decoding.costs import Costs, company
from semspec.driver.inbox import Given, Inbox
from semspec.driver.running import Finished, Running
from semspec.protocols import Engine, Plan
from semspec.types import Answer, Context, Query, Role

T = TypeVar("T")
Turns: TypeAlias = Generator[T | None, None, None]
"""Yields results as they come, and None for each turn without one."""


@dataclass(eq=False)
class Way(Generic[T]):
    """Runs plans over engines, ``concurrency`` at a time."""

    engines: Mapping[Role, Engine]
    costs: Costs | None  # receives the cost of each query
    waiting: Inbox[T] | Given[T]
    concurrency: int
    forget: Callable[[Context], None]  # called with the context of a plan that has ended
    running: list[Running[T]] = field(default_factory=list, init=False)

    def turns(self) -> Turns[Finished[T]]:
        """Run all plans; yield each result as its plan ends, and None whenever answers have advanced a plan."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up all running plans."""
        for left in self.running:
            left.plan.close()
            self.forget(left.context)

    def admitted(self) -> Iterator[tuple[Context, Plan[T]]]:
        """Yield plans while there is room; the caller adds each to ``running`` before taking the next."""
        while len(self.running) < self.concurrency:
            if (item := self.waiting.take(not self.running)) is None:
                return
            yield item

    def moved(
        self,
        one: Running[T],
        answers: Sequence[Answer | Exception] | None,
        share: Callable[[], float | None] = lambda: None,
    ) -> Finished[T] | None:
        """Start a plan (no answers) or continue it; return its result if it has ended."""
        try:
            if answers is None:
                one.asked = next(one.plan)
            else:
                one.send(answers)
        except StopIteration as stop:
            return one.over(stop.value, share())
        except Exception as error:
            if not isinstance(self.waiting, Inbox):
                raise
            return one.over(cast(T, None), share(), error)
        return None

    def ended(self, one: Running[T]) -> None:
        """Remove a finished plan from the running ones."""
        self.running.remove(one)
        self.forget(one.context)

    def give_up(self) -> None:
        """Close the running plans that were given up."""
        for context in self.waiting.given_up():
            for one in [one for one in self.running if one.context is context]:
                one.gone = True
                self.running.remove(one)
                one.plan.close()
                self.forget(context)

    # ---- for the cost model ---------------------------------------------------------------------

    def weigh(self) -> None:
        """Tell the cost model how many plans are about to run, if that number can change.

        Plans that are all given at once become fewer at the end. A recorded table ignores that, so that a problem's result
        depends only on the problem.
        """
        if self.costs is None:
            return
        if isinstance(self.waiting, Inbox):
            under_way = len(self.running) + len(self.waiting)
        elif self.costs.fixed or self.concurrency == 1:
            return
        else:
            under_way = len(self.running) if self.waiting.over else self.concurrency
        self.costs.load = company(min(under_way, self.concurrency), self.concurrency)

    def passed(
        self,
        queries: Sequence[Query],
        replies: Sequence[Answer | Exception],
        seconds: float,
        together: int,
    ) -> None:
        """Report how long one model's queries took, before the plans go on with the answers."""
        if self.costs is not None and (pairs := _answered(queries, replies)):
            self.costs.passed(pairs, seconds, together)

    def count(
        self,
        queries: Sequence[Query],
        replies: Sequence[Answer | Exception],
        seconds: float,
        own: float,
        together: int,
    ) -> None:
        """Report the time of one model's queries to the cost model, if all were answered."""
        if self.costs is not None and (pairs := _answered(queries, replies)):
            self.costs.took(pairs, seconds, own, together)


def _answered(
    queries: Sequence[Query], replies: Sequence[Answer | Exception]
) -> list[tuple[Query, Answer]]:
    """Return queries with their answers, if all were answered."""
    answers = [reply for reply in replies if isinstance(reply, Answer)]
    return list(zip(queries, answers, strict=True)) if len(answers) == len(queries) else []
