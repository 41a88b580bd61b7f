"""A running plan, and a finished one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from semspec.protocols import Plan
from semspec.types import Answer, Context, Query

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """A finished plan."""

    context: Context
    value: T  # None where ``error`` says why there is none
    seconds: float  # wall time from its first step to its last
    model_seconds: float  # the part spent waiting for models
    # its share of the wall time, which running plans divide equally at each moment; None in lockstep
    share: float | None = None
    error: Exception | None = None  # for a plan from an inbox, while the others go on


@dataclass(slots=True, eq=False)
class Running(Generic[T]):
    """A running plan."""

    context: Context
    plan: Plan[T]
    asked: Query | tuple[Query, ...] = ()
    started: float = field(default_factory=lambda: time.perf_counter())
    model_seconds: float = 0.0
    # only if plans run freely
    begun: float = 0.0  # the shared clock when it started
    waits: list[Future[Answer]] = field(default_factory=list)
    left: int = 0  # answers still missing
    since: float = 0.0  # when it asked
    beside: int = 0  # problems under way then, itself included
    gone: bool = False  # given up: answers that still come are ignored

    @property
    def queries(self) -> tuple[Query, ...]:
        return self.asked if isinstance(self.asked, tuple) else (self.asked,)

    def send(self, answers: Sequence[Answer | Exception]) -> None:
        """Send the plan its answers, or throw the first error into it; raises StopIteration when it has ended."""
        for answer in answers:
            if isinstance(answer, Exception):
                self.asked = self.plan.throw(answer)
                return
        reply = tuple(answers) if isinstance(self.asked, tuple) else answers[0]
        self.asked = self.plan.send(reply)

    def over(self, value: T, share: float | None, error: Exception | None = None) -> Finished[T]:
        seconds = time.perf_counter() - self.started
        return Finished(self.context, value, seconds, self.model_seconds, share, error)
