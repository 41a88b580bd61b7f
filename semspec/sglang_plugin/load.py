"""How many tokens the small model drafts at a time while so many requests run: the fewer, the more there are.

A table says it, as measured by who runs the server: ``[[4, 8], [16, 3], [64, 0]]`` drafts 8 tokens for up to 4 requests of a batch,
3 for up to 16, and beyond that none. Only what is drafted token by token goes by it: a step that is drafted at all is
drafted whole, and nested writing drafts one token at least. Lengths never depend on what is written, so no law does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.decoding.pace import Steady
from semspec.errors import UserError

Table = tuple[tuple[int, int], ...]


def checked(given: Sequence[Any]) -> Table:
    """Return a table as it was given in JSON; raise UserError for what is none."""
    found: list[tuple[int, int]] = []
    for row in given:
        whole = isinstance(row, list | tuple) and len(row) == 2
        if not whole or not all(type(number) is int for number in row):
            raise UserError(f"drafting.lm.by_load: {row!r} is no pair [requests, tokens]")
        requests, tokens = row
        if requests <= (found[-1][0] if found else 0) or tokens < 0:
            raise UserError(
                "drafting.lm.by_load: give requests in ascending order from 1, and tokens from 0"
            )
        found.append((requests, tokens))
    if any(tokens > before for (_, before), (_, tokens) in zip(found, found[1:], strict=False)):
        raise UserError("drafting.lm.by_load: more requests cannot want longer drafts")
    return tuple(found)


@dataclass(slots=True)
class Load:
    """A worker's load, as far as lengths depend on it."""

    table: Table = ()  # none: lengths are as they are asked for
    requests: int = 1  # of the last batch

    def tokens(self, asked: int) -> int:
        """Return how many tokens to draft where ``asked`` are asked for; 0: none."""
        if not self.table:
            return asked
        most = next((tokens for upto, tokens in self.table if self.requests <= upto), 0)
        return min(asked, most)


@dataclass(slots=True)
class Lightly(Steady):
    """Drafts the same length every time, as far as the load allows it."""

    load: Load | None = None

    def units(self) -> int:
        return self.length if self.load is None else max(1, self.load.tokens(self.length))
