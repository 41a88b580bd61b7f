"""Reward-guided speculative decoding: a process-reward model rates each step.

A step whose reward reaches the threshold stays, and the target writes the others (Liao et al. 2025,
"Reward-Guided Speculative Decoding", with the hard threshold of its experiments). The target makes
no separate pass over a draft: it reads the kept steps when it writes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from semspec.deferred import tensor_files, torch
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, ModelConfig
from semspec.protocols import Kit, Plan, Run
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._score import ScoreHead, read_score_head
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import LAST_STATES, Answer, Context, Draft, Query, Role


@register("accept", "rsd")
@dataclass(frozen=True, kw_only=True)
class Rsd(RuleBase):
    """Accepts a step if a process-reward model scores it high enough (RSD)."""

    threshold: float = 0.7
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/tiny-reward"))

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise UserError(f"accept.threshold={self.threshold}: rewards go from 0 to 1")

    def models(self) -> Mapping[Role, ModelConfig]:
        return {"reward": self.model}

    head: ClassVar[ScoreHead]  # set by ``bind``

    def bind(self, run: Run) -> Self:
        return self.bound(head=read_score_head(run.weights("reward")))

    def open(self, kit: Kit) -> RsdSession:
        return RsdSession(kit, self.threshold, self.head)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        weight = torch.arange(EXAMPLE.width).cos()[None]
        tensor_files.save_file({"score.weight": weight}, folder / "model.safetensors")
        yield cls(model=ModelConfig(path=str(folder)))


class RsdSession(StepSession):
    passes: ClassVar[bool] = False  # the reward model reads the draft, the target does not

    def __init__(self, kit: Kit, threshold: float, head: ScoreHead) -> None:
        super().__init__(kit)
        self.threshold, self.head = threshold, head

    def ponder(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Plan[Judgement]:
        kit = self.kit
        reply: Answer = yield Query(
            "reward", context, kit.sampling, kit.rng, tokens=draft.tokens, reads=(LAST_STATES,)
        )
        # row i is of token i - 1, so the state after a step that ends before token ``end`` is row ``end``
        states = reply[LAST_STATES][[end for _, end in spans], 0]
        rewards = self.head(states).tolist()
        return Judgement(lambda unit: rewards[unit] >= self.threshold, rewards)
