"""Let the target write alone, and record how likely it finds its own steps and the drafted ones.

A run cannot choose this rule: ``rules.logprob`` measures its threshold with it. It keeps no draft, so the target writes
all contexts, while the run's own drafter drafts in them.
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
    """One context: the target's own next step and the first drafted one, each with its lowest log-probability."""

    prompt: str
    before: int  # tokens of the output so far
    own: float
    drafted: float
    own_step: Sequence[int]
    drafted_step: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Watching(RuleBase):
    """Accepts nothing; records the lowest log-probabilities of own and drafted steps."""

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
        # including the token that revealed the step's end: drawn again, it could be another one
        return Verdict(0, list(answer.tokens))

    def lowest(self, context: Context, step: Sequence[int]) -> Plan[float]:
        """Have the target read a step; return the lowest log-probability of its tokens."""
        answer: Answer = yield Query(
            "target", context, self.kit.sampling, self.kit.rng, tokens=step, reads=(self.read,)
        )
        return float(min(answer[self.read].tolist()[: len(step)]))
