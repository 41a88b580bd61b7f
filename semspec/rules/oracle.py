"""Judge steps by the truth, which only the embedded world knows: the best that any judge could do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec import world
from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.registry import register
from semspec.rules._base import RuleBase
from semspec.rules._steps import Judgement, Span, StepSession
from semspec.types import Answer, Context, Draft


@register("accept", "oracle")
@dataclass(frozen=True, kw_only=True)
class Oracle(RuleBase):
    """Accepts a step if it is true and may come next (problems of the embedded world only)."""

    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph"})

    def open(self, kit: Kit) -> OracleSession:
        problem = world.find_problem(kit.prompt)
        if problem is None:
            raise UserError(
                "accept=oracle knows the truth of the embedded world's problems only:"
                " use benchmark=synthetic, or another rule such as accept=lossless"
            )
        return OracleSession(kit, problem)


class OracleSession(StepSession):
    def __init__(self, kit: Kit, problem: world.Problem) -> None:
        super().__init__(kit)
        self.problem = problem
        self.read_to = -1  # how much of the context the history below covers
        self.history: list[world.Meaning] = []

    def weigh(
        self, context: Context, draft: Draft, spans: Sequence[Span], answer: Answer
    ) -> Judgement:
        # the target makes its pass anyway, so that costs compare with other rules
        self._catch_up(context)
        before = list(self.history)
        truth: list[bool] = []
        for start, end in spans:
            said = world.meaning(self.problem, self._said(draft.tokens[start:end]))
            truth.append(world.is_next(self.problem, before, said))
            before.append(said or ("unreadable",))
        return Judgement(lambda unit: truth[unit], [float(true) for true in truth])

    def _catch_up(self, context: Context) -> None:
        """Read the steps that were committed since the last judgement."""
        if self.read_to < 0:
            self.read_to = context.prompt_length
        for step in world.split_steps(self._said(context.tokens[self.read_to :])):
            self.history.append(world.meaning(self.problem, step) or ("unreadable",))
        self.read_to = len(context)

    def _said(self, tokens: list[int]) -> str:
        return self.kit.decode([t for t in tokens if t not in self.kit.stop_ids])
