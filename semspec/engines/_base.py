"""Defaults for all engines, and the rule that ends generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from semspec.models.location import ModelConfig
from semspec.protocols import Need, Plugin, Setup, Small
from semspec.types import Answer, Generate, Role, What


class EngineBase(Plugin):
    """Defaults: the engine runs in this process, in any role, from weights in a folder."""

    offers: ClassVar[frozenset[What]]
    roles: ClassVar[frozenset[Role] | None] = None
    may_change: ClassVar[tuple[str, ...]] = ()

    @property
    def holds_weights(self) -> bool:
        return True

    def verifies(self, setup: Setup) -> tuple[bool, str]:
        return False, ""

    @property
    def key(self) -> str:
        return repr(self)

    def drafting(self, small: Small) -> Self:
        return self

    def reaches(self, role: Role) -> bool:
        return True

    @classmethod
    def suits(cls) -> tuple[int, str] | None:
        return None

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Do nothing: any machine will do."""

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        return ()

    def copies(self, role: Role) -> int:
        return 1

    @contextmanager
    def hosting(
        self, needs: Sequence[Need], logs: Path, tell: Callable[[str], object], waits: bool = True
    ) -> Iterator[Self]:
        """Yield the options unchanged: nothing has to be started."""
        yield self

    def retire(self) -> None:
        """Do nothing: there are no servers."""


def take(
    token: int, answer: Answer, ask: Generate, limit: int, stop_ids: Collection[int]
) -> int | None:
    """Append a token, set ``finish`` if it completes the answer, and return the boundary's result for it."""
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
    elif ask.pause is not None and ask.pause():
        answer.finish = "paused"
    return end
