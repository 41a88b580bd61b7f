"""The lower threshold: a score that stays below it says that more thinking will not solve the problem.

Conformal Thinking's form, which rises with the tokens t of the thinking: a problem that is new may score low, one that
has had most of its budget may not:

    floor(t) = height / (1 + exp(-slope (t - shift)))

The paper searches the slope, with height and shift given, and stops where a moving mean of the score meets the
threshold. Here the height is searched, because a higher one closes whatever a lower one closes, and no earlier one
could be skipped; shift and slope go with the budget; and the score has to be below in several trials in a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, Self

SOLVED: Final = "solved"  # why a thinking is closed
HOPELESS: Final = "hopeless"
IN_A_ROW = 3  # trials with a score below the threshold, after which a problem is given up
STEEPNESS = 10.0  # slope times budget: from 5 % to 95 % of the height within 0.6 of the budget
SHIFTS = (0.25, 0.5, 0.75)  # of the budget: where half of the height is reached
# strict to lenient: never, then even steps of the log odds
HEIGHTS = (0.0, *(1 / (1 + math.exp(-tenths / 10)) for tenths in range(-70, 71)))


@dataclass(frozen=True, slots=True)
class Floor:
    """A lower threshold that rises with the tokens of the thinking."""

    height: float  # that it approaches
    shift: float  # tokens at which it has half of that
    slope: float  # a token

    @classmethod
    def of(cls, height: float, shift: float, budget: int) -> Self:
        """Return one for a budget; ``shift`` is a share of it."""
        return cls(height, shift * budget, STEEPNESS / budget)

    def at(self, thought: int) -> float:
        """Return the threshold after so many tokens of the thinking."""
        return self.height / (1 + math.exp(-self.slope * (thought - self.shift)))

    def __str__(self) -> str:
        return f"a score that rises to {self.height:.4f}, half of it at {self.shift:g} tokens"


@dataclass(slots=True)
class Judge:
    """Says at the trials of one problem, in order, whether its thinking is to be closed."""

    threshold: float
    floor: Floor | None = None
    below: int = field(default=0, init=False)  # trials in a row

    def closes(self, thought: int, score: float) -> Literal["", "solved", "hopeless"]:
        """Return why the thinking is to be closed after this trial; "" if it is not."""
        if score >= self.threshold:
            return SOLVED
        low = self.floor is not None and score < self.floor.at(thought)
        self.below = self.below + 1 if low else 0
        return HOPELESS if self.below >= IN_A_ROW else ""
