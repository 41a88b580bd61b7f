"""The budget of a draft model's steps where steps may be copied from a problem's references in their place.

A copy comes first wherever the references match: looking costs next to nothing. What copies bring is kept apart from the
model's account, within the problem: they may lose ``COPIES``, and later what they have gained.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from semspec.decoding.budget_copied_steps import COPIES
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.economy import EARNED
from semspec.decoding.experience import EXPLORE
from semspec.types import Draft, Room, Round, Turns


@dataclass(slots=True, kw_only=True, eq=False)
class StepsBeside(AdaptiveSteps):
    """The pace of one problem with a draft model and references."""

    turns: Turns | None = field(default=None, init=False)
    _balance: float = field(default=COPIES, init=False)  # plain tokens that copies may lose

    def __post_init__(self) -> None:
        self.turns = self

    def units(self) -> int:
        """Return how much to copy at most; ``model`` decides how much the model drafts instead."""
        asked = AdaptiveSteps.units(self)
        if self._balance <= 0:
            return asked
        if self.economy.token:
            self._alone = 1  # the next step may be in the references
        return max(asked, 1)

    def model(self, found: Draft, room: Room) -> Room | None:
        """Return what the model drafts if no step was copied and its own account allows it."""
        if self._asked and not (found.tokens and self._balance > 0):
            return replace(room, units=self._asked)
        self._asked = 0
        self._let_others_try()
        return None

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        if self._asked:  # otherwise only the references were searched
            AdaptiveSteps.asked(self, units, seconds, passes)

    def _count(self, done: Round) -> None:
        AdaptiveSteps._count(self, done)
        economy = self.economy
        self._balance += EXPLORE * len(done.tokens)
        if self._lent and done.drafted and economy.token:
            self._balance += len(done.tokens) - self._read_and_written(done)
        self._balance = min(self._balance, EARNED)
