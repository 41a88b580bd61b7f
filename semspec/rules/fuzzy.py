"""Fuzzy speculative decoding: keep a token where the two models' distributions are close, whatever it is.

Holsman et al. 2025, "Fuzzy Speculative Decoding for a Tunable Accuracy-Runtime Tradeoff", section 3:
    accept x  iff  D(p, q) < threshold,
where p and q are the target's and the drafter's distributions at that position. Published thresholds
are 0.4 to 0.8 with the reverse divergence. Where the models differ, the paper draws from p; here the
drafted token goes through the lossless rule first. A draft without rows (retrieval, or any draft at
temperature 0) has no q: the lossless rule alone judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.types import PROBS, Context


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) = sum p log(p / q) in nats; infinite where q is 0 and p is not."""
    divergence: Tensor = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)
    return divergence


def _js(p: Tensor, q: Tensor) -> Tensor:
    """Return JS(p, q) = KL(p || m) / 2 + KL(q || m) / 2, m = (p + q) / 2; at most log 2."""
    middle = (p + q) / 2
    return (_kl(p, middle) + _kl(q, middle)) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": _kl,
    "reverse_kl": lambda p, q: _kl(q, p),
    "js": _js,
    "tv": lambda p, q: (p - q).abs().sum(-1) / 2,
}


@register("accept", "fuzzy")
@dataclass(frozen=True, kw_only=True)
class Fuzzy(TokenRule):
    """Keeps tokens where the target's and drafter's distributions are close (FSD); else lossless."""

    threshold: float = 0.4
    divergence: str = "reverse_kl"  # kl: KL(p || q), reverse_kl: KL(q || p); js, tv

    compares: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.divergence not in DIVERGENCES:
            raise UserError(
                f"accept.divergence={self.divergence}: give one of {', '.join(DIVERGENCES)}"
            )
        if not self.threshold >= 0:
            raise UserError(f"accept.threshold={self.threshold}: divergences are 0 or more")

    def open(self, kit: Kit) -> FuzzySession:
        return FuzzySession(kit, self)


class FuzzySession(LosslessSession):
    def __init__(self, kit: Kit, rule: Fuzzy) -> None:
        super().__init__(kit)
        self.rule = rule

    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        draft, p = scored.draft, scored.answer[PROBS]
        q = draft.probs if draft.probs is not None else draft.evidence.get(PROBS)
        if q is None or self.kit.sampling.greedy:
            return None
        measure = DIVERGENCES[self.rule.divergence]
        return measure(p[scored.shape.rows], q[: len(scored.tokens)]) < self.rule.threshold
