"""Ours: one probe on everything that the verifying pass knows, and a threshold in place of a coin.

The paper's features (all layers, averaged) are joined by maxima, last tokens and log-probabilities:
an error sits in one or two tokens, and an average dilutes it. The probe was trained on steps that
the draft wrote, too, whose semantic probability may be 0, which the model's own samples never
show. And a step that the target would say with probability .2 is no worse than one it would say with
1, so nothing is tossed: what the target would hardly ever say is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.probes.index import FEATURES
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._engine_probe import Scorer, seated
from semspec.rules._probed import Probed
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, Role, What


@register("accept", "semantic_plus")
@dataclass(frozen=True, kw_only=True)
class SemanticPlus(Probed):
    """Accepts a step whose meaning the target's richer probe holds probable enough (ours)."""

    # least semantic probability that is accepted; on the shipped probe's calibration set, 3 of 502
    # accepted steps are ones that the target would hardly say
    threshold: float = 0.25
    features: str = "plus"  # paper, last_layer: the same rule on other features, to compare

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED, What.LOGPROBS})

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise UserError(f"accept.threshold={self.threshold} is a probability: give 0 to 1")
        if self.features not in FEATURES:
            raise UserError(f"accept.features={self.features}: give {', '.join(FEATURES)}")

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        return {"target": (self.target_probe, self.features)}

    def asking(self, role: Role, features: str) -> str | None:
        return f"accept.features={features}"

    def prepare(
        self, models: Mapping[Role, ModelFacts], split: str, temperature: float
    ) -> PreparedPlus:
        return PreparedPlus(
            **self.options(),
            target=self.load(
                self.target_probe, self.features, "target", models["target"], split, temperature
            ),
        )


@dataclass(frozen=True, kw_only=True)
class PreparedPlus(SemanticPlus):
    """With its probe."""

    target: Scorer

    def on(self, offers: Mapping[Role, Collection[What]]) -> PreparedPlus:
        return replace(self, target=seated(self.target, offers["target"]))

    def open(self, kit: Kit) -> ScoreSession:
        return ScoreSession(kit, self.target, self.threshold)


class ScoreSession(StepSession):
    """Accepts steps whose score reaches a threshold."""

    def __init__(self, kit: Kit, target: Scorer, threshold: float) -> None:
        super().__init__(kit)
        self.target, self.threshold = target, threshold

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        return self.target.reads(spans)

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        scores = self.target.score(answer.values, self.target.reads(spans), spans).tolist()
        return Judgement(lambda unit: scores[unit] >= self.threshold, scores)
