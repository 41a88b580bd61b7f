"""Token Recycling: what the target thought of after a token the last time, as a tree (Luo et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from semspec.drafters._base import DrafterBase
from semspec.drafters._memory import Memory, RememberingSession, with_room
from semspec.drafters._proposal import ROOT, Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room, What

NOTHING = -1  # an entry of the matrix that no pass has filled


@register("drafter", "token_recycling")
@dataclass(frozen=True, kw_only=True)
class TokenRecycling(DrafterBase):
    """Follows the target's last top tokens after each token, through a static tree."""

    top_k: int = 8
    nodes: int = 80
    depth: int = 6

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})

    def __post_init__(self) -> None:
        if min(self.top_k, self.nodes, self.depth) < 1:
            raise UserError(
                f"top_k={self.top_k}, nodes={self.nodes}, depth={self.depth}: each is at least 1"
            )

    @property
    def reach(self) -> int:
        """Levels of its tree."""
        return self.depth

    def open(self, kit: Kit) -> TokenRecyclingSession:
        return TokenRecyclingSession(self, kit)


@lru_cache
def shape(top_k: int, nodes: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The static tree: parent of every node, and its rank among the parent's top tokens.

    A token of rank r (from 0) is expected with probability 2^-(r + 1), so that a node weighs
    2^-(sum of r + 1 along its path). The heaviest nodes make the tree, of equals the one that was
    reached first; parents come before children.
    """
    parents: list[int] = []
    ranks: list[int] = []
    heap = [(rank + 1, rank, ROOT, rank, 1) for rank in range(top_k)]
    pushed = len(heap)
    while heap and len(parents) < nodes:
        weight, _, parent, rank, level = heappop(heap)
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        for child in range(top_k if level < depth else 0):
            heappush(heap, (weight + child + 1, pushed, node, child, level + 1))
            pushed += 1
    return tuple(parents), tuple(ranks)


class TokenRecyclingSession(RememberingSession):
    def __init__(self, options: TokenRecycling, kit: Kit) -> None:
        super().__init__(Memory(top_k=options.top_k))
        self.options, self.kit = options, kit
        self.matrix: NDArray[np.int32] = np.zeros((0, options.top_k), np.int32)
        self._recycled = 0  # positions whose rows are in the matrix

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from self.memory.catch_up(context, self.kit)
        self._recycle(context)
        options = self.options
        proposal = Proposal(self.kit, room)
        nodes: list[int | None] = []
        parents, ranks = shape(options.top_k, options.nodes, options.depth)
        rows: dict[int, list[int]] = {ROOT: self._after(context.tokens[-1])}
        for parent, rank in zip(parents, ranks, strict=True):
            at = ROOT if parent == ROOT else nodes[parent]
            nodes.append(None)
            if at is None:
                continue
            row = rows.get(at)
            if row is None:
                row = rows[at] = self._after(proposal.tokens[at])
            if rank < len(row):
                nodes[-1] = proposal.add(at, row[rank], "main")
        return proposal.draft()

    def _after(self, token: int) -> list[int]:
        """What the target thought of after this token, the likeliest first."""
        row = self.matrix[token].tolist() if token < len(self.matrix) else []
        return row[: row.index(NOTHING)] if NOTHING in row else row

    def _recycle(self, context: Context) -> None:
        """Row x of the matrix becomes the target's top tokens at the newest position of x."""
        # a row of the last token itself may be there or not: left out, the text alone decides
        new = context.tokens[self._recycled : min(self.memory.known, len(context) - 1)]
        if not new:
            return
        needed = max(new) + 1
        if needed > len(self.matrix):  # the vocabulary as far as it was seen
            filled = len(self.matrix)
            self.matrix = with_room(self.matrix, needed, self.options.top_k)
            self.matrix[filled:] = NOTHING
        ids = self.memory.tops[self._recycled : self._recycled + len(new)]
        self.matrix[new, : ids.shape[1]] = ids  # of a token that comes twice the last row stays
        self._recycled += len(new)
