"""Book the costs of a round's parts: passes and tokens by model, seconds by purpose.

No clock is read here. Engines stamp their answers with seconds, and the driver stamps drafts with the
drafter's own work (``driver.Timed``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from semspec.decoding.plans import tapped
from semspec.protocols import Plan
from semspec.types import Answer, Draft, Purpose, Query, Round

T = TypeVar("T")


def book(query: Query, answer: Answer, done: Round) -> None:
    """Book one answer in ``done``."""
    done.seconds[query.purpose] = done.seconds.get(query.purpose, 0.0) + answer.seconds
    if query.passes:
        done.fed[query.model] = done.fed.get(query.model, 0) + answer.fed
        done.cached[query.model] = done.cached.get(query.model, 0) + answer.cached
        # a generated token is a separate pass; the prompt is fed in the first
        done.passes[query.model] = done.passes.get(query.model, 0) + max(1, len(answer.tokens))


def booked(
    plan: Plan[T], done: Round, also: Callable[[Query, Answer], object] = lambda query, answer: None
) -> Plan[T]:
    """Run a plan and book its answers in ``done``; ``also`` gets each of them."""

    def answered(queries: Sequence[Query], answers: Sequence[Answer]) -> None:
        for query, answer in zip(queries, answers, strict=True):
            book(query, answer, done)
            also(query, answer)

    return tapped(plan, lambda queries: None, answered)


def drafted(plan: Plan[Draft], done: Round) -> Plan[Draft]:
    """Run a drafter's plan and book it in ``done``; store the total seconds in the draft."""
    part, passes = Round(), 0.0

    def count(query: Query, answer: Answer) -> None:
        nonlocal passes
        passes += answer.seconds if query.passes else 0.0

    draft = yield from booked(plan, part, count)
    # a draft made ahead is booked in one round and judged in a later one
    draft.seconds = part.seconds["draft"] = draft.seconds + part.seconds.get("draft", 0.0)
    draft.passes = passes
    add(part, done)
    return draft


def add(part: Round, done: Round, purpose: Purpose | None = None) -> None:
    """Add the costs of a part to its round; book all its seconds as ``purpose``, if given."""
    for name in ("passes", "fed", "cached"):
        sums = getattr(done, name)
        for role, count in getattr(part, name).items():
            sums[role] = sums.get(role, 0) + count
    for booked_as, seconds in part.seconds.items():
        key = purpose or booked_as
        done.seconds[key] = done.seconds.get(key, 0.0) + seconds
