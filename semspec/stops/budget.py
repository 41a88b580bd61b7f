"""End the thinking with the step in which its budget runs out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.stops._base import Closes
from semspec.types import Context, Opinion


@register("stop", "budget")
@dataclass(frozen=True, kw_only=True)
class Budget(Closes):
    """Ends the thinking after the step in which it reaches a number of tokens."""

    tokens: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens < 1:
            raise UserError(f"stop.tokens={self.tokens}: give at least 1")

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(tokens=3, answer_tokens=4, words="")

    def open(self, kit: Kit) -> BudgetSession:
        return BudgetSession(self.tokens)


class BudgetSession:
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        why = f"the thinking has had {thought} of {self.tokens} tokens"
        return Opinion(thought >= self.tokens, None, why)
        yield  # a plan is a generator even if it asks nothing
