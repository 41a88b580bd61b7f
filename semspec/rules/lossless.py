"""Speculative sampling: whatever was drafted, what comes out has exactly the target's law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._acceptance import lossless_chain
from semspec.rules._base import RuleBase
from semspec.sampling import draw_next, uniforms
from semspec.types import Context, Draft, Query, Read, Verdict, What

PROBS = Read(What.PROBS)


@register("accept", "lossless")
@dataclass(frozen=True, kw_only=True)
class Lossless(RuleBase):
    """Speculative sampling (Leviathan 2023): exactly the target's law, token by token."""

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS})
    cuts: ClassVar[Literal["tokens", "ends"]] = "tokens"
    lossless: ClassVar[bool] = True

    def evidence(self) -> tuple[Read, ...]:
        return (PROBS,)  # q, for drafts that were sampled

    def open(self, kit: Kit) -> LosslessSession:
        return LosslessSession(kit)


class LosslessSession:
    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        assert draft.parents is None, "trees are verified by their own rule"
        kit = self.kit
        answer = yield Query(
            "target", context, kit.sampling, kit.rng, tokens=draft.tokens, reads=(PROBS,)
        )
        p = answer[PROBS]
        tokens = torch.tensor(draft.tokens, device=p.device)
        chances = uniforms(len(tokens), kit.sampling, kit.rng, p.device)
        keep, row = lossless_chain(p, tokens, draft.probs, chances)
        if keep and draft.tokens[keep - 1] in kit.stop_ids:
            return Verdict(keep)  # nothing follows an end of text
        return Verdict(keep, [draw_next(row, kit.sampling, kit.rng)])
