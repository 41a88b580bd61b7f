"""SemanticSpec: both models' probes say how probable the step's meaning is (algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from semspec.errors import UserError
from semspec.protocols import InServer, Kit, Run
from semspec.registry import register
from semspec.rules._engine_probe import Scorer, for_engine
from semspec.rules._probed import Probed
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, Role, What

# the features of the target's probe -> those of the draft's probe
PROBES = {"paper": "paper", "last_layer": "last_layer", "plus": "paper"}


@register("accept", "semantic")
@dataclass(frozen=True, kw_only=True)
class Semantic(Probed):
    """SemanticSpec: accepts a step with probability min(1, f_T / f_D), both from trained probes."""

    # paper: all layers, averaged; last_layer: the paper's ablation; plus: our features, for the target's probe
    probe: str = "paper"
    draft_probe: str | None = None  # like target_probe

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED})
    in_server: ClassVar[InServer | None] = InServer(
        server=("target_probe", "draft_probe", "allow_mismatch")
    )

    def __post_init__(self) -> None:
        if self.probe not in PROBES:
            raise UserError(f"accept.probe={self.probe}: give {' or '.join(PROBES)}")

    def probes(self) -> Mapping[Role, tuple[str | None, str]]:
        return {
            "target": (self.target_probe, self.probe),
            "draft": (self.draft_probe, PROBES[self.probe]),
        }

    def asking(self, role: Role, features: str) -> str | None:
        asked = features if role == "target" or features != "plus" else None
        return f"accept.probe={asked}" if asked else None

    target: ClassVar[Scorer]  # set by ``bind``
    draft: ClassVar[Scorer | None]

    def bind(self, run: Run) -> Self:
        # a drafter without a model has no hidden states: its drafts are certain, f_D = 1
        probes = {
            role: for_engine(self.load(role, run), run.offers)
            for role in self.probes()
            if role in run.models
        }
        return self.bound(target=probes["target"], draft=probes.get("draft"))

    def evidence(self) -> tuple[Read, ...]:
        return self.draft.draft_reads() if self.draft is not None else ()

    def open(self, kit: Kit) -> SemanticSession:
        return SemanticSession(kit, self.target, self.draft)


class SemanticSession(StepSession):
    def __init__(self, kit: Kit, target: Scorer, draft: Scorer | None) -> None:
        super().__init__(kit)
        self.target, self.draft = target, draft

    def reads(self, draft: Draft, spans: Sequence[Span]) -> tuple[Read, ...]:
        return self.target.reads(spans)

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        f_t = self.target.score(answer.values, self.target.reads(spans), spans).tolist()
        f_d = self._of_draft(draft.evidence, spans)
        # algorithm 1, line 11: accept with probability min(1, f_T / f_D)
        ratios = [min(1.0, t / max(d, 1e-6)) for t, d in zip(f_t, f_d, strict=True)]
        rng = self.kit.rng
        return Judgement(lambda unit: rng.random() < ratios[unit], ratios)

    def _of_draft(self, evidence: Mapping[Read, Any], spans: Sequence[Span]) -> list[float]:
        reads = self.draft.draft_reads() if self.draft is not None else ()
        if self.draft is None or any(read not in evidence for read in reads):
            return [1.0] * len(spans)  # tokens copied, or drafted by a head, count as certain
        return [float(x) for x in self.draft.score(evidence, reads, spans)]
