"""The truth about a step, which only the embedded world knows: what any judge could reach at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from semspec import world
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.rules._steps import left_to_right, unit_spans
from semspec.types import Context, Draft, Query, Read, Verdict, What


@register("accept", "oracle")
@dataclass(frozen=True, kw_only=True)
class Oracle:
    """Accepts a step iff it is true and may come next (problems of the embedded world only)."""

    needs: ClassVar[frozenset[What]] = frozenset()
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"
    splits: ClassVar[frozenset[str] | None] = frozenset({"paragraph"})
    lossless: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def evidence(self) -> tuple[Read, ...]:
        return ()

    def open(self, kit: Kit) -> OracleSession:
        problem = world.find_problem(kit.prompt)
        if problem is None:
            raise UserError(
                "accept=oracle knows the truth of the embedded world's problems only:"
                " use benchmark=synthetic, or another rule such as accept=lossless"
            )
        return OracleSession(kit, problem)


class OracleSession:
    def __init__(self, kit: Kit, problem: world.Problem) -> None:
        self.kit, self.problem = kit, problem
        self.seen = -1  # how much of the context the history below covers
        self.history: list[world.Meaning] = []

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        kit = self.kit
        # the pass is paid for like every other rule's
        yield Query("target", context, kit.sampling, kit.rng, tokens=draft.tokens)
        self._catch_up(context)
        before = list(self.history)
        truth: list[bool] = []
        for start, end in unit_spans(draft):
            said = world.meaning(self.problem, self._text(draft.tokens[start:end]))
            truth.append(world.is_next(self.problem, before, said))
            before.append(said or ("unreadable",))
        return left_to_right(draft, lambda unit: truth[unit], [float(true) for true in truth])

    def _catch_up(self, context: Context) -> None:
        """Reads the steps that were committed since the last judgement."""
        if self.seen < 0:
            self.seen = context.prompt_length
        for step in world.split_steps(self._text(context.tokens[self.seen :])):
            self.history.append(world.meaning(self.problem, step) or ("unreadable",))
        self.seen = len(context)

    def _text(self, tokens: list[int]) -> str:
        return self.kit.decode([t for t in tokens if t not in self.kit.stop_ids])
