"""SemanticSpec's ablation: both semantic probabilities are drawn uniformly (section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft


@register("accept", "random")
@dataclass(frozen=True, kw_only=True)
class Random(RuleBase):
    """Accepts a step with probability min(1, f_T / f_D) of two uniform numbers, or with ``rate``."""

    rate: float | None = None  # accept with this probability instead, to match another rule's share

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise UserError(f"accept.rate={self.rate} is a probability: give 0 to 1")

    def open(self, kit: Kit) -> RandomSession:
        return RandomSession(kit, self.rate)


class RandomSession(StepSession):
    def __init__(self, kit: Kit, rate: float | None) -> None:
        super().__init__(kit)
        self.rate = rate

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        rng = self.kit.rng
        ratios = []
        for _ in spans:
            target, small = rng.random(), rng.random()
            drawn = min(1.0, target / max(small, 1e-12))
            ratios.append(drawn if self.rate is None else self.rate)
        return Judgement(lambda unit: rng.random() < ratios[unit], ratios)
