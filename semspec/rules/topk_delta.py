"""Relaxed acceptance: keep a token that is among the target's top k and not far behind the first.

TensorRT-LLM, "Relaxed acceptance" of speculative decoding for DeepSeek-R1: with the target's
distribution p before temperature,
    accept x  iff  x is among the k most probable  and  p(x) >= max p - delta,
with k = 10 and delta = 0.6 in its documentation, where it applies within the thinking only: a slip in
a chain of thought can be mended, one in the answer cannot. All other tokens go through the lossless rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semspec.decoding.thinking import Thinking
from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.models.text import OPEN
from semspec.protocols import InServer, Kit, Verified
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.types import PROBS, Context, Read, What


@register("accept", "topk_delta")
@dataclass(frozen=True, kw_only=True)
class TopKDelta(TokenRule):
    """Keeps tokens in the target's top k and at most delta below its top token; else lossless."""

    k: int = 10
    delta: float = 0.6
    only_in_think: bool = False  # outside the thinking, the lossless rule alone judges

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS, What.TOP_K})
    in_server: ClassVar[InServer | None] = InServer({"k": int, "delta": float})

    def __post_init__(self) -> None:
        if self.k < 1 or not 0 <= self.delta <= 1:
            raise UserError(
                f"accept.k={self.k}, accept.delta={self.delta}: k is at least 1, delta is a"
                " difference of probabilities, 0 to 1"
            )

    def open(self, kit: Kit) -> TopKDeltaSession:
        return TopKDeltaSession(kit, self)

    def keeps(self, seen: Verified) -> Tensor:
        raw = seen.logits.float().log_softmax(-1)  # before temperature
        top = raw.topk(min(self.k, raw.shape[-1]), -1)
        return near_nodes(top.indices, top.values, seen.flat, seen.rows, self.delta)


class TopKDeltaSession(LosslessSession):
    def __init__(self, kit: Kit, rule: TopKDelta) -> None:
        super().__init__(kit)
        self.rule = rule
        self.top = Read(What.TOP_K, k=rule.k)
        self.reads = (PROBS, self.top)
        self.opening, self.thinking = Thinking(kit.piece, OPEN), Thinking(kit.piece)
        self.opened = kit.prompt.rstrip().endswith(OPEN)
        self.seen = -1  # how much of the context both have been fed

    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        ids, logprobs = scored.answer[self.top]
        near = near_nodes(ids, logprobs, scored.tokens, scored.shape.rows, self.rule.delta)
        return near & within if (within := self._thought(context, scored)) is not None else near

    def _thought(self, context: Context, scored: Scored) -> Tensor | None:
        """Return which nodes belong to the thinking; None if that does not matter."""
        if not self.rule.only_in_think:
            return None
        new = context.tokens[self.seen if self.seen >= 0 else context.prompt_length :]
        self.seen = len(context)
        self.opening.feed(new)
        self.thinking.feed(new)
        draft = scored.draft
        parents = draft.parents or range(-1, len(draft.tokens) - 1)
        over = self.thinking.closed_before(draft.tokens, parents)
        opened = self.opened or self.opening.over
        return torch.tensor([opened and not closed for closed in over], device=scored.tokens.device)


def near_nodes(ids: Tensor, logprobs: Tensor, tokens: Tensor, rows: Tensor, delta: float) -> Tensor:
    """Return which tokens are in their row's top k and at most ``delta`` below its first, bool [nodes].

    Row ``rows[i]`` of ``ids`` and ``logprobs``, k columns each, judges node i, ``tokens[i]``.
    """
    p = logprobs.exp()
    near = p >= p[:, :1] - delta
    return ((ids[rows] == tokens[:, None]) & near[rows]).any(-1)
