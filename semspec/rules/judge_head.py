"""Judge decoding: a linear head on the target's last hidden state says whether a token is right.

Bachmann et al. 2025, "Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model
Alignment", section 4: with h the target's last hidden state after it has read the drafted token x,
    accept x  iff  sigmoid(w . h + b) >= threshold   or standard verification accepts it.
The head is trained on tokens of right and of wrong continuations. It separates wrong tokens from right
ones that the target would merely have put differently, and keeps the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts import base
from semspec.artifacts.judge_head import JudgeHead
from semspec.deferred import Tensor
from semspec.errors import UserError
from semspec.protocols import Kit, Run, Source
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.types import LAST_STATES, PROBS, Context, What


@register("accept", "judge_head")
@dataclass(frozen=True, kw_only=True)
class Judged(TokenRule):
    """Keeps tokens that a linear head on the target's last state rates correct; else lossless."""

    threshold: float = 0.5
    head: str = "embedded/judge-head-tiny-target"  # a folder or a Hub repository[@revision]
    allow_mismatch: bool = False  # use a head that was trained for something else

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS, What.HIDDEN})

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise UserError(
                f"accept.threshold={self.threshold}: a probability to be reached, give 0"
                " (everything is kept) to 1"
            )

    judge: ClassVar[JudgeHead]  # set by ``bind``

    def loads(self, run: Run) -> Sequence[Source]:
        return [base.source("judge head", self.head)]

    def bind(self, run: Run) -> Self:
        judge = JudgeHead.load(self.head)
        judge.check(run.models["target"], allow_mismatch=self.allow_mismatch)
        return self.bound(judge=judge)

    def open(self, kit: Kit) -> JudgedSession:
        return JudgedSession(kit, self.judge, self.threshold)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        JudgeHead.example().save(folder / "head")
        yield cls(head=str(folder / "head"))


class JudgedSession(LosslessSession):
    reads = (PROBS, LAST_STATES)

    def __init__(self, kit: Kit, head: JudgeHead, threshold: float) -> None:
        super().__init__(kit)
        self.head, self.threshold = head, threshold

    def loosely(self, context: Context, scored: Scored) -> Tensor:
        states = scored.answer[LAST_STATES][1:, 0]  # of each node itself, not of its parent
        return self.head(states) >= self.threshold
