"""Arbitrage (Maheswaran et al. 2025, arXiv:2512.05033): a router predicts whether the target would write a better step.

The decision depends not on how good a drafted step is, but on how much better the target's own would be: a poor step
stays where the target would do no better, so that no rewrite is wasted. The target makes no pass for the decision; it
only writes the steps that the router gives it.

    y^ = router(context, drafted step)     the probability that the target's step is better
    the drafted step stays iff  y^ <= threshold

As in the paper: this rule, the label that the router learns (the sign of the difference of two scores, the target's
averaged over several of its steps), and that the target does nothing before it is asked to write. *Ours*: the router.
The paper fine-tunes a process-reward model of 1.5 billion weights, which reads question, chain and step in a pass of its
own; here a small perceptron reads states that the draft model computes anyway (``artifacts.router``). The compared
scores do not come from a reward model, either (``training.probes.advantage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts import base
from semspec.artifacts.router import Router
from semspec.errors import UserError
from semspec.probes.commands import place, training
from semspec.protocols import Kit, Run, Setup, Source
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._small import check_drafted
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Read, What


@register("accept", "arbitrage")
@dataclass(frozen=True, kw_only=True)
class Arbitrage(RuleBase):
    """Rejects a step if a router predicts that the target would write a better one (Arbitrage)."""

    router: str = "embedded/router-tiny-draft"  # a folder or a Hub repository[@revision]
    threshold: float = 0.5  # P(the target's step is better) up to which a draft stays; 1: always
    allow_mismatch: bool = False  # use a router that was trained for something else

    needs: ClassVar[frozenset[What]] = frozenset({What.POOLED, What.LOGPROBS})
    salvages: ClassVar[bool] = False  # the target makes no pass over the draft

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise UserError(f"accept.threshold={self.threshold} is a probability: give 0 to 1")

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    judge: ClassVar[Router | None] = None  # set by ``bind``, if anything is drafted

    def loads(self, run: Run) -> Sequence[Source]:
        return [base.source("router", self.router)] if "draft" in run.models else []

    def bind(self, run: Run) -> Self:
        if "draft" not in run.models:  # nothing is drafted, and no step judged
            return self
        judge, made = Router.load(self.router), (run.places, "draft", "plus", run.split, True)
        command = f"{training(*made)} and give accept.router={place(*made)}"
        judge.check_pair(run, self.allow_mismatch, command)
        return self.bound(judge=judge)

    def evidence(self) -> tuple[Read, ...]:
        return self.judge.draft_reads() if self.judge is not None else ()

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        for features in ("paper", "plus"):
            Router.example(features=features).save(folder / features)
            yield cls(router=str(folder / features), allow_mismatch=True)

    def open(self, kit: Kit) -> ArbitrageSession:
        return ArbitrageSession(kit, self.judge, self.threshold)


class ArbitrageSession(StepSession):
    passes: ClassVar[bool] = False  # the draft's own evidence is enough

    def __init__(self, kit: Kit, judge: Router | None, threshold: float) -> None:
        super().__init__(kit)
        self.router, self.threshold = judge, threshold

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        assert self.router is not None, "a rule is bound before it judges"
        found, reads = draft.evidence, self.router.draft_reads()
        if any(read not in found for read in reads):
            # a copied draft has no evidence: the target writes
            return Judgement(lambda unit: False, [0.0] * len(spans))
        better = self.router.score(found, reads, spans).tolist()
        # 1 - x: higher is better for the drafted step, as with every score
        return Judgement(lambda unit: better[unit] <= self.threshold, [1 - x for x in better])
