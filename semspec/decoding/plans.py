"""Combine plans: observe one while it runs, or run two side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

from semspec.protocols import Plan
from semspec.types import Answer, Query

T = TypeVar("T")
U = TypeVar("U")


def tapped(
    plan: Plan[T],
    asking: Callable[[Sequence[Query]], None],
    answered: Callable[[Sequence[Query], Sequence[Answer]], None],
) -> Plan[T]:
    """Run a plan; call ``asking`` before its queries are asked and ``answered`` with the answers."""
    try:
        asked = next(plan)
        while True:
            queries = asked if isinstance(asked, tuple) else (asked,)
            asking(queries)
            reply = yield asked
            answered(queries, reply if isinstance(asked, tuple) else (reply,))
            asked = plan.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def together(first: Plan[T], second: Plan[U]) -> Plan[tuple[T, U]]:
    """Run two plans side by side; while both have queries, ask these at the same time."""
    plans: list[Plan[Any]] = [first, second]
    results: list[Any] = [None, None]
    asked: dict[int, Query | tuple[Query, ...]] = {}

    def step(i: int, answer: Any) -> None:
        try:
            asked[i] = plans[i].send(answer)
        except StopIteration as stop:
            asked.pop(i, None)
            results[i] = stop.value

    step(0, None)
    step(1, None)
    while asked:
        order = sorted(asked)
        groups = [q if isinstance(q, tuple) else (q,) for q in (asked[i] for i in order)]
        answers = list((yield tuple(chain.from_iterable(groups))))
        for i, group in zip(order, groups, strict=True):
            own, answers = tuple(answers[: len(group)]), answers[len(group) :]
            step(i, own if isinstance(asked[i], tuple) else own[0])
    return results[0], results[1]
