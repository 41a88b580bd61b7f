"""Typical acceptance: keep a token that is likely enough, given how sure the target is.

Cai et al. 2024, "Medusa", section 2.3.1: with the target's distribution p after temperature,
    accept x  iff  p(x) > min(epsilon, delta * exp(-H(p))),
where H is the entropy in nats. The values are those of the authors' code (posterior_threshold 0.09,
posterior_alpha 0.3). There the first token is always the target's own; here, tokens that are not
typical go through the lossless rule. The output does not have the target's distribution: likely tokens
become even more likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.protocols import InServer, Kit, Verified
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.types import PROBS, Context


@register("accept", "typical")
@dataclass(frozen=True, kw_only=True)
class Typical(TokenRule):
    """Keeps tokens that are likely enough, given how sure the target is (Medusa); else lossless."""

    epsilon: float = 0.09  # a token above this probability is always kept
    delta: float = 0.3  # least probability where the target is unsure, as a share of exp(-entropy)

    in_server: ClassVar[InServer | None] = InServer({"epsilon": float, "delta": float})

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and self.delta >= 0):
            raise UserError(
                f"accept.epsilon={self.epsilon}, accept.delta={self.delta}: give"
                " probabilities from 0 (keep everything)"
            )

    def open(self, kit: Kit) -> TypicalSession:
        return TypicalSession(kit, self)

    def keeps(self, seen: Verified) -> Tensor:
        return typical_nodes(seen.p, seen.flat, seen.rows, self.epsilon, self.delta)


class TypicalSession(LosslessSession):
    def __init__(self, kit: Kit, rule: Typical) -> None:
        super().__init__(kit)
        self.rule = rule

    def loosely(self, context: Context, scored: Scored) -> Tensor:
        p = scored.answer[PROBS]
        rows = scored.shape.rows
        return typical_nodes(p, scored.tokens, rows, self.rule.epsilon, self.rule.delta)


def typical_nodes(p: Tensor, tokens: Tensor, rows: Tensor, epsilon: float, delta: float) -> Tensor:
    """Return which nodes are typical, bool [nodes]: row ``rows[i]`` of ``p`` judges node i, ``tokens[i]``."""
    entropy = -torch.special.xlogy(p, p).sum(-1)
    least = (delta * (-entropy).exp()).clamp_max(epsilon)
    typical: Tensor = p[rows, tokens] > least[rows]
    return typical
