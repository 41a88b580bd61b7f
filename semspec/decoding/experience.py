"""What drafting has really cost, by the clock, beside what the cost model had predicted.

A prediction that is a few hundredths off is enough to make drafts that bring nothing look as if they paid. So
where one problem is solved at a time, the seconds of every round are held against the plain tokens in whose place it
stands. Nothing here reads a clock: the driver brings the time (``Costs.clock``). With a recorded cost table there is
none, and predictions alone count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

EXPLORE = 0.005  # of the time: what may be lost by drafts that are expected to lose
# plain tokens that drafts may owe at most, each problem's: of what is more, a pause of the machine is the likelier cause
DEBT = 24.0
FADES = 0.97  # of what earlier rounds took, at each new one
ENOUGH = 16  # tokens in a row from which the price of a plain one can be told
FEW = 4  # rows until their price is trusted
MEMORY = 128.0  # plain tokens: of more, the older ones fade
OUTLIER = 3.0  # times what was expected: a longer round counts as so long
LEAST, MOST = 0.9, 3.0  # times what was predicted
SURE = 6.0  # plain tokens of rounds that went as predicted, counted beforehand
WAKES = 0.5  # of what was thought before of the cost of asking again, at each new answer


@dataclass(slots=True)
class Rows:
    """What plain tokens take that the target writes in a row."""

    seconds: float = 0.0
    tokens: float = 0.0
    rows: float = 0.0  # how many rows there were
    positions: float = 0.0  # before each of these tokens, all of them together

    @property
    def token(self) -> float:
        """Seconds of a plain token; 0 until some were written in a row."""
        return self.seconds / self.tokens if self.tokens else 0.0

    @property
    def context(self) -> float | None:
        """The positions before such a token, on average; None where nobody counted them."""
        return self.positions / self.tokens if self.positions else None

    def add(self, seconds: float, tokens: int, context: float = 0.0) -> None:
        """Count a row behind so many positions: one that was interrupted for no more than ``OUTLIER`` times what it should have taken."""
        expected = self.token * tokens
        if expected:
            seconds = min(seconds, OUTLIER * expected)
        if self.rows < FEW and seconds < expected:  # the first ones find the caches cold
            self.seconds = self.tokens = self.positions = 0.0
        self.seconds += seconds
        self.positions += tokens * (context + tokens / 2 if context else 0.0)
        self.tokens += tokens
        self.rows += 1

    def fade(self, share: float) -> None:
        """Let what was counted so far weigh no more than this share of it."""
        self.seconds, self.tokens = share * self.seconds, share * self.tokens
        self.positions *= share


@dataclass(slots=True)
class Experience(Rows):
    """Sums over the rounds of all problems so far, newer ones counting more."""

    old: float = 0.0  # tokens that were written since these were
    real: float = 0.0  # plain tokens of time in rounds for which something was asked of the drafter
    predicted: float = 0.0
    waking: float = 0.0  # plain tokens that a drafter needs to read what it has not seen

    @property
    def factor(self) -> float:
        """Return how many times as long as predicted rounds with a draft take."""
        if not self.predicted:
            return 1.0
        # as if some rounds had gone as predicted: a single one says little
        return min(max((self.real + SURE) / (self.predicted + SURE), LEAST), MOST)

    def wrote(self, seconds: float, tokens: int, context: float = 0.0) -> None:
        """Count tokens that the target wrote in a row behind so many positions, while no drafter read along."""
        if tokens < ENOUGH or seconds <= 0:
            return
        self.add(seconds, tokens, context)
        self.old = 0.0
        if self.tokens > MEMORY:
            self.fade(MEMORY / self.tokens)

    def drafted(self, real: float, predicted: float) -> None:
        """Count a round with its drafts, in plain tokens of time."""
        self.real = FADES * self.real + real
        self.predicted = FADES * self.predicted + predicted

    def woke(self, excess: float) -> None:
        """Count what a draft took longer because its drafter had much to read first."""
        share = WAKES if self.waking else 0.0
        self.waking = share * self.waking + (1 - share) * max(excess, 0.0)

    def told(self) -> dict[str, float]:
        """Return the sums as JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Make it of what ``told`` returned; raise ValueError or TypeError if it is something else."""
        made = cls(**{name: float(value) for name, value in told.items()})
        if not all(0 <= getattr(made, one.name) < math.inf for one in fields(made)):
            raise ValueError(f"no sums: {told}")
        return made
