"""Greedy verification: keep what the target's argmax would have written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semspec.decoding.acceptance import matching_nodes
from semspec.deferred import Tensor
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._tokens import Scored, TokenRule, TokenSession
from semspec.types import Context, Read, What

BEST = Read(What.TOP_K, k=1)


@register("accept", "greedy")
@dataclass(frozen=True, kw_only=True)
class Greedy(TokenRule):
    """Keeps tokens that are the target's most likely ones; at a mismatch, writes that token."""

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    greedy_only: ClassVar[bool] = True

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def open(self, kit: Kit) -> GreedySession:
        return GreedySession(kit)


class GreedySession(TokenSession):
    reads = (BEST,)

    def accepted(self, context: Context, scored: Scored) -> Tensor:
        return matching_nodes(scored.answer[BEST][0][:, 0], scored.tokens, scored.shape)

    def following(self, scored: Scored, path: list[int]) -> int:
        return int(scored.answer[BEST][0][path[-1] + 1 if path else 0, 0])
