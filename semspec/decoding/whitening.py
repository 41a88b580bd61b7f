"""Whitened rows of the target's input embeddings, read once and kept for all problems of a rule."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.decoding.arc_bound import Moments, inverse_deviation
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.types import EMBEDDINGS, Answer, Context, Query

PART = 8192  # rows per read of a whole table
WHOLE = 4096  # a table of at most so many rows is read whole on first use
LIMIT = 16384  # most rows kept: a large model's take 16 KiB each


class Whitened:
    """W e_t of the tokens seen so far, with W = diag(1 / sigma); sigma is measured if not given."""

    def __init__(self, sigma: Tensor | None) -> None:
        self.scale = None if sigma is None else inverse_deviation(sigma)
        self.rows = torch.empty(0, 0)  # grows with spare rows
        self._places: dict[int, int] = {}

    def places(
        self, tokens: Sequence[int], context: Context, kit: Kit, vocabulary: int
    ) -> Plan[list[int]]:
        """Return the tokens' positions in ``rows``; new tokens are read first, without a pass."""
        if self.scale is None:
            self.scale = inverse_deviation((yield from deviation(context, kit, vocabulary)))
        # repeat if another problem's tokens evicted these meanwhile
        while missing := [t for t in dict.fromkeys(tokens) if t not in self._places]:
            wanted = range(vocabulary) if vocabulary <= WHOLE else missing
            self._keep(wanted, (yield from embeddings(wanted, context, kit)))
        return [self._places[token] for token in tokens]

    def _keep(self, tokens: Sequence[int], rows: Tensor) -> None:
        assert self.scale is not None
        if len(self._places) + len(tokens) > LIMIT:
            self._places.clear()
        fresh = [i for i, token in enumerate(tokens) if token not in self._places]
        first = len(self._places)
        last = first + len(fresh)
        if last > len(self.rows):
            room = torch.empty(2 * last, rows.shape[-1], device=rows.device)
            if first:
                room[:first] = self.rows[:first]
            self.rows, self.scale = room, self.scale.to(rows.device)
        self.rows[first:last] = rows[fresh] * self.scale
        self._places |= {tokens[i]: first + n for n, i in enumerate(fresh)}


def embeddings(tokens: Sequence[int], context: Context, kit: Kit) -> Plan[Tensor]:
    """Read rows [tokens, width] of the target's input embeddings, float32."""
    # as siblings, so that any number fits after a long context
    asked = ("target", context, kit.sampling, kit.rng)
    query = Query(*asked, tokens=tokens, parents=[-1] * len(tokens), reads=(EMBEDDINGS,))
    answer: Answer = yield query
    rows: Tensor = answer[EMBEDDINGS]
    return rows


def deviation(context: Context, kit: Kit, vocabulary: int) -> Plan[Tensor]:
    """Measure sigma of each dimension over the whole table (algorithm 1, line 1)."""
    moments = Moments()
    for start in range(0, vocabulary, PART):
        part = range(start, min(start + PART, vocabulary))
        moments.add((yield from embeddings(part, context, kit)))
    return moments.deviation()
