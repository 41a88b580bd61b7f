"""GlimpRouter (Zeng et al. 2026, arXiv:2601.05110): a step's first token decides who writes the step.

The small model looks at one token. If its entropy says that the step is hard, the target writes the step; otherwise the
small model goes on. Nothing is verified: the target reads what the small model wrote only when it writes next.

As in the public code: the entropy is of the small model's own row, in nats at temperature 1, over its 20 likeliest
tokens as if there were no others; a step goes to the target from 1.0 on. *Different here*: the small model's token is
kept and its step continues from it (the public code drops it and samples the step anew, which has the same
distribution), and who writes the answer after the thinking is an option of the run (there the target does:
``answer_by=target``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Setup
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._small import check_drafted
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft, Gate, Handover, Read, Verdict, What

FIRST = Read(What.TOP_K, k=20)


@register("accept", "glimprouter")
@dataclass(frozen=True, kw_only=True)
class GlimpRouter(RuleBase):
    """Keeps steps whose first token the small model is sure of, unverified (GlimpRouter)."""

    threshold: float = 1.0  # entropy of the first token, in nats, from which the target writes

    needs: ClassVar[frozenset[What]] = frozenset({What.TOP_K})
    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph"})
    salvages: ClassVar[bool] = False  # a drafted step is never rejected by the target

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise UserError(
                f"accept.threshold={self.threshold}: give an entropy above 0, in nats;"
                " draft=none makes the target write every step"
            )

    def check_setup(self, setup: Setup) -> None:
        super().check_setup(setup)
        check_drafted(setup)

    def gate(self) -> Gate:
        return Gate(self.threshold, "unit", FIRST)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls()

    def open(self, kit: Kit) -> GlimpRouterSession:
        return GlimpRouterSession(kit)


class GlimpRouterSession(StepSession):
    passes: ClassVar[bool] = False

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        verdict = yield from super().judge(context, draft)
        if draft.halted and verdict.handover is None:
            verdict.handover = Handover(units=1)
            verdict.note = f"the first token's entropy is {draft.doubts[-1]:.2f}"
        return verdict

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        # higher is more certain, as with every score
        scores = [-doubt for doubt in draft.doubts[: len(spans)]]
        # copied units are rejected: they passed no gate, so nothing has checked them
        return Judgement(lambda unit: unit < len(scores), scores)
