"""Lookahead Reasoning: the target writes its own version of every drafted step, and meanings are compared.

The target's steps are requested at the same time, each after the drafted steps before it, so that an
engine can write them in one batch. Drafted steps are kept up to the first that does not mean what the
target's own means; there the target's own step is taken, and nothing has to be written again.
(Fu et al. 2025, "Scaling Speculative Decoding with Lookahead Reasoning".)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.models.wanted import MODEL
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._same import Same, by_embedding, by_entailment, by_oracle, by_text
from semspec.rules._steps import StepSession, unit_spans
from semspec.types import Answer, Context, Draft, Generate, Query, Verdict

MODELS: Mapping[str, str | None] = {
    "nli": "embedded/tiny-nli",
    "embedding": "sentence-transformers/all-mpnet-base-v2",  # the paper's
    "oracle": None,
    "exact": None,
}
NO_LIMIT = 1 << 16  # a unit ends at the splitter's cap


@register("accept", "lookahead")
@dataclass(frozen=True, kw_only=True)
class Lookahead(RuleBase):
    """Accepts steps that mean the same as the target's own step (Lookahead Reasoning)."""

    compare: str = "nli"  # nli, embedding, oracle (the embedded world), exact
    # the model that compares; "": the default for ``compare``
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path=""))
    threshold: float = 0.95  # embedding: the cosine must be above this

    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph", "sentence"})
    salvages: ClassVar[bool] = False  # the target's own step replaces a rejected one

    def __post_init__(self) -> None:
        if self.compare not in MODELS:
            raise UserError(f"accept.compare={self.compare}: give one of {', '.join(MODELS)}")
        if not -1 <= self.threshold < 1:
            raise UserError(f"accept.threshold={self.threshold}: a cosine of 1 is never exceeded")

    def loads(self, run: Run) -> Sequence[Source]:
        if self.compare not in ("nli", "embedding"):
            return ()
        model = self._model
        return [Source(f"{self.compare} model", model.path, model.revision, MODEL)]

    def bind(self, run: Run) -> Self:
        if self.compare in ("nli", "embedding"):
            self._by_model()  # raises now if it cannot be loaded
        return self

    def open(self, kit: Kit) -> LookaheadSession:
        if self.compare == "oracle":
            return LookaheadSession(kit, by_oracle(kit))
        return LookaheadSession(kit, by_text if self.compare == "exact" else self._by_model())

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(compare="exact")

    @property
    def _model(self) -> ModelConfig:
        return self.model if self.model.path else ModelConfig(path=str(MODELS[self.compare]))

    def _by_model(self) -> Same:
        model = self._model
        if self.compare == "nli":
            return by_entailment(model)
        return by_embedding(model, self.threshold)


class LookaheadSession(StepSession):
    def __init__(self, kit: Kit, same: Same) -> None:
        super().__init__(kit)
        self.same = same

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        assert draft.parents is None, "a tree has no steps"
        kit, spans = self.kit, unit_spans(draft)
        answers: Sequence[Answer] = yield tuple(
            Query(
                "target",
                context,
                kit.sampling,
                # an RNG each: what one draws must not depend on how far the others are
                random.Random(kit.rng.getrandbits(64)),
                tokens=draft.tokens[:start],
                generate=Generate(NO_LIMIT, kit.boundary()),
            )
            for start, _ in spans
        )
        stale = self.repeated(context, draft, spans)
        said = kit.prompt + kit.decode(context.output)
        scores: list[float] = []
        for unit, ((start, end), own) in enumerate(zip(spans, answers, strict=True)):
            step, before = draft.tokens[start:end], said + kit.decode(draft.tokens[:start])
            alike = self._alike(before, step, own.tokens[: own.unit_ends()[0]])
            scores.append(float(alike))
            if not alike or unit == stale:
                # including the token that revealed the step's end: drawn again, it could be another
                note = (
                    "repeats an earlier step"
                    if alike
                    else "differs in meaning from the target's own step"
                )
                return Verdict(start, list(own.tokens), scores=scores, note=note)
        return Verdict(len(draft.tokens), scores=scores)

    def _alike(self, before: str, a: Sequence[int], b: Sequence[int]) -> bool:
        stops = self.kit.stop_ids
        if (a[-1] in stops) != (b[-1] in stops):
            return False  # one ends the text, the other goes on
        first, second = (self.kit.decode([t for t in s if t not in stops]) for s in (a, b))
        return self.same(before, first, second)
