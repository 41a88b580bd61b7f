"""Speculative sampling: whatever was drafted, what comes out has exactly the target's law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._acceptance import lossless_chain
from semspec.sampling import draw
from semspec.types import Context, Draft, Query, Read, Verdict, What

PROBS = Read(What.PROBS)


@register("accept", "lossless")
@dataclass(frozen=True, kw_only=True)
class Lossless:
    """Speculative sampling (Leviathan 2023): exactly the target's law, token by token."""

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS})
    cuts: ClassVar[Literal["tokens", "ends"]] = "tokens"
    splits: ClassVar[frozenset[str] | None] = None
    lossless: ClassVar[bool] = True
    greedy_only: ClassVar[bool] = False

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
        if kit.sampling.greedy:  # the rows are one-hot: nothing is left to chance
            uniforms = torch.full(tokens.shape, 0.5, device=p.device)
        else:
            uniforms = torch.tensor([kit.rng.random() for _ in draft.tokens], device=p.device)
        keep, row = lossless_chain(p, tokens, draft.probs, uniforms)
        if keep and draft.tokens[keep - 1] in kit.stop_ids:
            return Verdict(keep)  # nothing follows an end of text
        token = int(row.argmax()) if kit.sampling.greedy else draw(row, kit.rng.random())
        return Verdict(keep, [token])
