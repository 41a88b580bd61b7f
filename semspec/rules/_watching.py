"""Let the target write alone, and note how likely it finds its own steps and the drafted ones.

Not a rule that a run can choose: it keeps nothing of any draft, so what it notes holds of contexts that the target
wrote, with the run's own drafter at work beside it. A threshold is measured with it (``rules.logprob``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from semspec.protocols import Kit, Plan
from semspec.rules._base import RuleBase
from semspec.rules._steps import StepSession
from semspec.types import LOGPROBS, Answer, Context, Draft, Generate, Query, Read, Verdict, What

NO_LIMIT = 1 << 16  # a unit ends at the splitter's cap


@dataclass(frozen=True, slots=True)
class Place:
    """One context: the target's own step there, and the first drafted one, by lowest log-probability."""

    prompt: str
    before: int  # tokens of the output so far
    own: float
    drafted: float
    own_step: Sequence[int]
    drafted_step: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Watching(RuleBase):
    """Accepts nothing; notes the lowest log-probabilities of own and drafted steps."""

    places: list[Place] = field(default_factory=list)
    read: Read = LOGPROBS

    needs: ClassVar[frozenset[What]] = frozenset({What.LOGPROBS})

    def open(self, kit: Kit) -> WatchingSession:
        return WatchingSession(kit, self.places, self.read)


class WatchingSession(StepSession):
    def __init__(self, kit: Kit, places: list[Place], read: Read = LOGPROBS) -> None:
        super().__init__(kit)
        self.places, self.read = places, read

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        assert draft.parents is None, "a tree has no steps"
        kit, step = self.kit, draft.tokens[: draft.ends[0]]
        own = context, kit.sampling, kit.rng
        drafted = yield from self.lowest(context, step)
        answer: Answer = yield Query(
            "target", *own, reads=(self.read,), generate=Generate(NO_LIMIT, kit.boundary(), 1)
        )
        written = answer.tokens[: answer.unit_ends()[0]]
        lowest = min(answer[self.read].tolist()[: len(written)])
        at = len(context) - context.prompt_length
        self.places.append(Place(kit.prompt, at, lowest, drafted, tuple(written), tuple(step)))
        # with the token that revealed the step's end: drawn again it would be another one
        return Verdict(0, list(answer.tokens))

    def lowest(self, context: Context, step: Sequence[int]) -> Plan[float]:
        """Have the target read a step; return its lowest log-probability."""
        answer: Answer = yield Query(
            "target", context, self.kit.sampling, self.kit.rng, tokens=step, reads=(self.read,)
        )
        return float(min(answer[self.read].tolist()[: len(step)]))
