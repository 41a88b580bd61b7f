"""Ours: one probe on everything that the verifying pass gives, and a threshold instead of a random draw.

The probe reads maxima, last tokens and log-probabilities besides the paper's features (all layers,
averaged): an error sits in one or two tokens, and an average dilutes it. It is also trained on steps
that the draft wrote, whose semantic probability may be 0; the model's own samples never show that.
A step that the target would say with probability 0.2 is no worse than one it would say with
probability 1, so acceptance is not random: what the target would hardly ever say is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from semspec.errors import UserError
from semspec.probes import index
from semspec.protocols import InServer, Kit, Run
from semspec.registry import register
from semspec.rules._engine_probe import Scorer, for_engine
from semspec.rules._probed import Probed
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, Role, What


@register("accept", "semantic_plus")
@dataclass(frozen=True, kw_only=True)
class SemanticPlus(Probed):
    """Accepts a step if the target's richer probe finds its meaning probable enough (ours)."""

    # least semantic probability that is accepted; on the shipped probe's calibration set, 3 of 502
    # accepted steps are ones that the target would hardly say
    threshold: float = 0.25
    features: str = "plus"  # paper, last_layer: the same rule on other features, for comparison

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED, What.LOGPROBS})
    in_server: ClassVar[InServer | None] = InServer(
        {"threshold": float}, server=("target_probe", "allow_mismatch")
    )

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise UserError(f"accept.threshold={self.threshold} is a probability: give 0 to 1")
        if self.features not in index.FEATURES:
            raise UserError(f"accept.features={self.features}: give {', '.join(index.FEATURES)}")

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        return {"target": (self.target_probe, self.features)}

    def asking(self, role: Role, features: str) -> str | None:
        return f"accept.features={features}"

    target: ClassVar[Scorer]  # set by ``bind``

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str]:
        if "target_probe" in given:
            return 3, "accept.target_probe is given"
        if found := index.find(target, "target", "plus", split):
            return 3, f"{found[0]} is a probe of {target}"
        if split == "token":
            return 0, "a token has no meaning that a probe could score"
        return 0, f"no probe (plus, split={split}) is known for {target}"

    def bind(self, run: Run) -> Self:
        return self.bound(target=for_engine(self.load("target", run), run.offers))

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
