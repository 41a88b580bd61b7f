"""Shorter token drafts by the small model when more requests run.

The server's operator gives a measured table: with ``[[4, 8], [16, 3], [64, 0]]``, the model drafts 8 tokens at a time for
batches of up to 4 requests, 3 for up to 16, and none for larger batches. Only token drafts follow the table: a step is
drafted whole or not at all, and nested writing drafts at least one token. Lengths never depend on the text, so the table
does not change the output's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.decoding.pace import Steady
from semspec.errors import UserError

Table = tuple[tuple[int, int], ...]


def checked(given: Sequence[Any]) -> Table:
    """Return a table given in JSON; raise UserError if it is malformed."""
    found: list[tuple[int, int]] = []
    for row in given:
        whole = isinstance(row, list | tuple) and len(row) == 2
        if not whole or not all(type(number) is int for number in row):
            raise UserError(f"drafting.lm.by_load: {row!r} is not a pair [requests, tokens]")
        requests, tokens = row
        if requests <= (found[-1][0] if found else 0) or tokens < 0:
            raise UserError(
                "drafting.lm.by_load: give requests in ascending order from 1, and tokens from 0"
            )
        found.append((requests, tokens))
    if any(tokens > before for (_, before), (_, tokens) in zip(found, found[1:], strict=False)):
        raise UserError(
            "drafting.lm.by_load: more requests cannot have longer drafts: give token counts"
            " that never rise"
        )
    return tuple(found)


@dataclass(slots=True)
class Load:
    """A worker's load, which limits the length of drafts."""

    table: Table = ()  # empty: no limit
    requests: int = 1  # in the last batch

    def tokens(self, asked: int) -> int:
        """Return how many tokens to draft, at most ``asked``."""
        if not self.table:
            return asked
        most = next((tokens for upto, tokens in self.table if self.requests <= upto), 0)
        return min(asked, most)


@dataclass(slots=True)
class Lightly(Steady):
    """A pace that drafts the same length every time, or less under load."""

    load: Load | None = None

    def units(self) -> int:
        return self.length if self.load is None else max(1, self.load.tokens(self.length))
