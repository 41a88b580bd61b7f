"""EAT (arXiv:2509.26522): decide by the entropy after a forced end of the thinking.

At the end of a step, close the thinking and begin the answer; the entropy of the next token says how sure the
answer is. This takes one further pass over a few tokens and reads one row. The paper waits until the entropy's
moving variance is small. Here its moving mean decides, as 1 / perplexity, so that a threshold can be certified
(docs/thinking_less.md). An answer of several tokens is judged only by its first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from semspec.deferred import torch
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.stops._trial import Trial, TrialSession
from semspec.types import Answer, Context, Query, Read, What

BEST = Read(What.TOP_K, k=20)  # all other tokens count as one


@register("stop", "eat")
@dataclass(frozen=True, kw_only=True)
class Eat(Trial):
    """Ends the thinking once the entropy of a forced answer's first token is low enough (EAT)."""

    smooth: float = 0.5  # weight of the newest entropy in the moving mean; 1: no smoothing

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.smooth <= 1:
            raise UserError(f"stop.smooth={self.smooth}: give more than 0, at most 1")

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(threshold=0.02, answer_tokens=4, words="")
        yield cls(threshold=0.02, every=2, least=2, smooth=1, answer_tokens=4, words="")

    def open(self, kit: Kit) -> EatSession:
        return EatSession(self, kit)


class EatSession(TrialSession):
    stop: Eat
    mean: float | None = None  # moving mean of the entropy

    def score(self, context: Context) -> Plan[float]:
        answer: Answer = yield Query(
            "target",
            context,
            self.kit.sampling,
            self.kit.rng,
            tokens=self.tail,
            reads=(BEST,),
            rows_from=len(context) + len(self.tail) - 1,
        )
        entropy = entropy_of(answer[BEST][1][-1])
        weight = 1.0 if self.mean is None else self.stop.smooth
        self.mean = weight * entropy + (1 - weight) * (self.mean or 0.0)
        return float(torch.tensor(-self.mean).exp())


def entropy_of(logprobs: torch.Tensor) -> float:
    """Return the entropy, in nats, of a row's likeliest tokens; all others count as one token."""
    shares = torch.as_tensor(logprobs).double().exp()
    rest = (1 - shares.sum()).clamp(min=0).reshape(1)
    shares = torch.cat([shares, rest])
    return float(-torch.special.xlogy(shares, shares).sum().clamp(max=0))
