"""The lower threshold: a score that stays below it means that more thinking will not solve the problem.

It has Conformal Thinking's form and rises with the tokens t of the thinking: a new problem may score low, one that has
used most of its budget may not:

    floor(t) = height / (1 + exp(-slope (t - shift)))

The paper fixes height and shift, searches the slope, and stops where a moving mean of the score meets the threshold.
Here the height is searched, because a higher one closes whatever a lower one closes, so none could be skipped;
shift and slope scale with the budget; and the score has to be below in several trials in a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, Self

SOLVED: Final = "solved"  # reasons to close the thinking
HOPELESS: Final = "hopeless"
IN_A_ROW = 3  # trials in a row below the threshold before a problem is given up
STEEPNESS = 10.0  # slope times budget: from 5 % to 95 % of the height within 0.6 of the budget
SHIFTS = (0.25, 0.5, 0.75)  # shares of the budget at which half of the height is reached
# from never, in even steps of the log odds
HEIGHTS = (0.0, *(1 / (1 + math.exp(-tenths / 10)) for tenths in range(-70, 71)))


@dataclass(frozen=True, slots=True)
class Floor:
    """A lower threshold that rises with the tokens of the thinking."""

    height: float  # its limit
    shift: float  # tokens at which it reaches half of that
    slope: float  # per token

    @classmethod
    def of(cls, height: float, shift: float, budget: int) -> Self:
        """Return the threshold for a budget; ``shift`` is a share of it."""
        return cls(height, shift * budget, STEEPNESS / budget)

    def at(self, thought: int) -> float:
        """Return the threshold after so many tokens of the thinking."""
        return self.height / (1 + math.exp(-self.slope * (thought - self.shift)))

    def __str__(self) -> str:
        return f"a score that rises to {self.height:.4f}, half of it at {self.shift:g} tokens"


@dataclass(slots=True)
class Judge:
    """Decides at each trial of one problem, in order, whether to close its thinking."""

    threshold: float
    floor: Floor | None = None
    below: int = field(default=0, init=False)  # trials in a row below the floor

    def closes(self, thought: int, score: float) -> Literal["", "solved", "hopeless"]:
        """Return why to close the thinking after this trial; "" if it goes on."""
        if score >= self.threshold:
            return SOLVED
        low = self.floor is not None and score < self.floor.at(thought)
        self.below = self.below + 1 if low else 0
        return HOPELESS if self.below >= IN_A_ROW else ""
