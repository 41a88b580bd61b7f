"""Token Recycling: draft a tree of the target's top tokens at each token's last occurrence (Luo et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from semspec.drafters._base import DrafterBase
from semspec.drafters._memory import Memory, RememberingSession
from semspec.drafters._proposal import ROOT, Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room, What


@register("drafter", "token_recycling")
@dataclass(frozen=True, kw_only=True)
class TokenRecycling(DrafterBase):
    """Drafts a static tree: after each token, the target's top tokens at its last occurrence."""

    top_k: int = 8
    nodes: int = 80
    depth: int = 6

    needs = frozenset({What.TOP_K})

    def __post_init__(self) -> None:
        if min(self.top_k, self.nodes, self.depth) < 1:
            raise UserError(
                f"top_k={self.top_k}, nodes={self.nodes}, depth={self.depth}: each is at least 1"
            )

    @property
    def reach(self) -> int:
        return self.depth

    def open(self, kit: Kit) -> TokenRecyclingSession:
        return TokenRecyclingSession(self, kit)


@lru_cache
def shape(top_k: int, nodes: int, depth: int) -> tuple[tuple[int, int], ...]:
    """Return the static tree: of every node its parent, and its rank among the parent's top tokens.

    A token of rank r (from 0) is expected with probability 2^-(r + 1), so that a node weighs
    2^-(sum of r + 1 along its path). The heaviest nodes make the tree, ties by which was reached
    first; parents come before children.
    """
    made: list[tuple[int, int]] = []
    heap = [(rank + 1, rank, ROOT, rank, 1) for rank in range(top_k)]
    pushed = len(heap)
    while heap and len(made) < nodes:
        weight, _, parent, rank, level = heappop(heap)
        node = len(made)
        made.append((parent, rank))
        for child in range(top_k if level < depth else 0):
            heappush(heap, (weight + child + 1, pushed, node, child, level + 1))
            pushed += 1
    return tuple(made)


class TokenRecyclingSession(RememberingSession):
    def __init__(self, options: TokenRecycling, kit: Kit) -> None:
        super().__init__(Memory(top_k=options.top_k))
        self.options, self.kit = options, kit
        self.matrix: dict[int, list[int]] = {}  # token -> the target's top tokens after it
        self._recycled = 0  # positions whose rows are in the matrix

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from self.memory.catch_up(context, self.kit)
        self._recycle(context)
        options = self.options
        proposal = Proposal(self.kit, room)
        static = shape(options.top_k, options.nodes, options.depth)
        # after each token the target's top tokens, the likeliest first
        proposal.grow(static, lambda token: self.matrix.get(token, []), context.tokens[-1])
        return proposal.draft()

    def _recycle(self, context: Context) -> None:
        """Set row x of the matrix to the target's top tokens at the newest position of x."""
        # the last token's row may or may not be known: without it, the text alone decides
        start, end = self._recycled, min(self.memory.known, len(context) - 1)
        if start < end:
            rows = self.memory.tops[start:end].tolist()
            self.matrix.update(zip(context.tokens[start:end], rows, strict=True))
            self._recycled = end
