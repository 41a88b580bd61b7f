"""What every rule that judges whole units has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from semspec.types import Draft, Handover, Verdict


def unit_spans(draft: Draft) -> list[tuple[int, int]]:
    """The units of a draft as (start, end) over its tokens."""
    return list(pairwise([0, *draft.ends]))


def left_to_right(
    draft: Draft, accept: Callable[[int], bool], scores: Sequence[float] = ()
) -> Verdict:
    """Keeps units until the first that is not accepted; the target writes that one itself.

    SemanticSpec, algorithm 1, lines 9-16: everything from the first rejection on is discarded.
    """
    for unit in range(len(draft.ends)):
        if not accept(unit):
            keep = draft.ends[unit - 1] if unit else 0
            return Verdict(keep, handover=Handover(units=1), scores=list(scores[: unit + 1]))
    # a token that revealed the last end opens the next unit: thrown away, it would be drawn again,
    # and tokens that do not open a unit would come out too often
    return Verdict(len(draft.tokens), scores=list(scores))
