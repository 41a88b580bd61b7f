"""Functions shared by all splitters."""

from __future__ import annotations

from collections.abc import Iterable

from semspec.types import Boundary


def unit_ends(boundary: Boundary, tokens: Iterable[int]) -> list[int]:
    """Return the ends of all complete units of a sequence, as when the tokens are streamed.

    A unit at the end of the sequence is incomplete if only a next token would reveal its end.
    """
    steps = map(boundary.feed, tokens)
    return [count + step for count, step in enumerate(steps, start=1) if step is not None]


def check_cap(cap: int) -> int:
    """Return the cap of a unit; raise ValueError below 1, which would stop all progress."""
    if cap < 1:
        raise ValueError(f"a unit's cap must be at least 1 token, not {cap}")
    return cap
