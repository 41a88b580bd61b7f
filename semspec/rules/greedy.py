"""Greedy verification: keep what the target's argmax would have written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._acceptance import matching_prefix
from semspec.rules._base import RuleBase
from semspec.types import Context, Draft, Query, Read, Verdict, What

BEST = Read(What.TOP_K, k=1)


@register("accept", "greedy")
@dataclass(frozen=True, kw_only=True)
class Greedy(RuleBase):
    """Keeps tokens that are the target's most likely ones; writes that one where they differ."""

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    cuts: ClassVar[Literal["tokens", "ends"]] = "tokens"
    greedy_only: ClassVar[bool] = True

    def open(self, kit: Kit) -> GreedySession:
        return GreedySession(kit)


class GreedySession:
    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        assert draft.parents is None, "trees are verified by their own rule"
        kit = self.kit
        answer = yield Query(
            "target", context, kit.sampling, kit.rng, tokens=draft.tokens, reads=(BEST,)
        )
        best = answer[BEST][0][:, 0]
        keep = matching_prefix(best, torch.tensor(draft.tokens, device=best.device))
        if keep and draft.tokens[keep - 1] in kit.stop_ids:
            return Verdict(keep)
        return Verdict(keep, [int(best[keep])])
