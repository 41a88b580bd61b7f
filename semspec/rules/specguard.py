"""SpecGuard (Purohit et al. 2026, arXiv:2604.15244): judge by the draft model's own attention and log-probabilities.

A drafted step stays where it is grounded in what was said before (the draft model attended to that while it wrote) and
the draft model was sure of its tokens; the target writes the others. No model reads a step to check it.

    grounding  G = min_t sum_{j < start} a_t,j     a: attention of token t, averaged over heads and layers
    confidence L = min_t ln p_t
    accepted where  beta * G + (1 - beta) * e^L >= threshold

From the abstract: the two signals, that they are combined, and that a step is accepted or recomputed by the target.
*Ours*, because we did not have the paper's text: the formulas above. Two parts of the method are missing. The paper
samples several candidates and takes the one most similar to the others; here only one is drafted. The paper attributes
by attention rollout through the layers, over the whole text; here the weights of the last ``layers`` layers are averaged,
which needs only the rows of the step.

Only ``engine=hf`` reads attention weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.deferred import Tensor
from semspec.errors import UserError
from semspec.protocols import Kit, Setup
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._small import check_drafted
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import LOGPROBS, Answer, Context, Draft, Read, What


@register("accept", "specguard")
@dataclass(frozen=True, kw_only=True)
class SpecGuard(RuleBase):
    """Accepts a step by the small model's attention and log-probabilities alone (SpecGuard)."""

    threshold: float = 0.5  # least joint score, 0 to 1
    beta: float = 0.5  # weight of the grounding; the confidence has 1 - beta
    layers: int = 1  # average the attention of this many last layers

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS, What.ATTENTION})
    salvages: ClassVar[bool] = False  # the target makes no pass over the draft

    def __post_init__(self) -> None:
        if not (0 <= self.threshold <= 1 and 0 <= self.beta <= 1):
            raise UserError(
                f"accept.threshold={self.threshold}, accept.beta={self.beta}: both go from 0 to 1"
            )
        if self.layers < 1:
            raise UserError(f"accept.layers={self.layers}: give at least 1")

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    @property
    def attention(self) -> Read:
        return Read(What.ATTENTION, layers=tuple(range(-self.layers, 0)))

    def evidence(self) -> tuple[Read, ...]:
        return (LOGPROBS, self.attention) if self.beta else (LOGPROBS,)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(beta=0.0, threshold=0.2)  # the contract's models have no attention

    def open(self, kit: Kit) -> SpecGuardSession:
        return SpecGuardSession(kit, self)


class SpecGuardSession(StepSession):
    passes: ClassVar[bool] = False  # the draft's own evidence is enough

    def __init__(self, kit: Kit, rule: SpecGuard) -> None:
        super().__init__(kit)
        self.rule = rule

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        rule, found = self.rule, draft.evidence
        if LOGPROBS not in found:  # a copied draft has no evidence: the target writes
            return Judgement(lambda unit: False, [0.0] * len(spans))
        weights = found[rule.attention].mean(0) if rule.beta else None
        scores = []
        for start, end in spans:
            score = (1 - rule.beta) * float(found[LOGPROBS][start:end].min().exp())
            if weights is not None:
                # token t was drawn from row t, the state of the token before it: the positions are the text before the
                # draft and all drafted tokens but the last, so ``first`` is where the draft begins
                first = weights.shape[-1] - len(weights) + 1
                score += rule.beta * grounding(weights[start:end], first + start)
            scores.append(score)
        return Judgement(lambda unit: scores[unit] >= rule.threshold, scores)


def grounding(weights: Tensor, before: int) -> float:
    """Return the least attention of a row of [rows, positions] to the first ``before`` positions, 0 to 1."""
    return float(weights[:, :before].sum(-1).min())
