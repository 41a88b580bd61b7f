"""Defaults that every engine shares, and the rule by which generation ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from semspec.protocols import Plugin
from semspec.types import Answer, Generate, Role, What


class EngineBase(Plugin):
    """Defaults: runs in this process, in any role, from weights in a folder."""

    offers: ClassVar[frozenset[What]]
    roles: ClassVar[frozenset[Role] | None] = None
    may_change: ClassVar[tuple[str, ...]] = ()

    @property
    def holds_weights(self) -> bool:
        return True


def take(
    token: int, answer: Answer, ask: Generate, limit: int, stop_ids: Collection[int]
) -> int | None:
    """Append a token, set ``finish`` if it completes the answer; return what the boundary says of it."""
    end = None if ask.boundary is None else ask.boundary.feed(token)
    answer.tokens.append(token)
    if end is not None:
        answer.ends.append(len(answer.tokens) + end)
    if token in stop_ids:
        answer.finish = "eos"
    elif ask.boundary is not None and len(answer.ends) == ask.units:
        answer.finish = "units"
    elif len(answer.tokens) >= limit:
        answer.finish = "limit"
    return end
