"""What drafting has really cost by the clock, compared with the predictions of the cost model.

A prediction that is a few percent off can make useless drafts look as if they paid. So where one problem runs at a
time, every round's seconds are compared with the plain tokens it replaces. Nothing here reads a clock: the driver
supplies the time (``Costs.clock``). A recorded cost table has no clock, and only predictions count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

EXPLORE = 0.005  # share of the time that drafts with an expected loss may cost
# most plain tokens that drafts may owe per problem: a larger loss was more likely a pause of the machine
DEBT = 24.0
FADES = 0.97  # weight of earlier rounds at each new one
ENOUGH = 16  # least tokens in a row that tell the price of a plain token
FEW = 4  # rows before their price is trusted
MEMORY = 128.0  # plain tokens in the average; beyond that, older ones fade
OUTLIER = 3.0  # a round counts as at most this many times its expected time
LEAST, MOST = 0.9, 3.0  # limits of measured over predicted time
SURE = 6.0  # prior: plain tokens of rounds that went as predicted
WAKES = 0.5  # weight of the earlier estimate of waking a drafter, at each new one


@dataclass(slots=True)
class Rows:
    """Time of plain tokens that the target writes in a row."""

    seconds: float = 0.0
    tokens: float = 0.0
    rows: float = 0.0  # number of rows
    positions: float = 0.0  # sum of the context lengths of all tokens

    @property
    def token(self) -> float:
        """Seconds of a plain token; 0 until some were written in a row."""
        return self.seconds / self.tokens if self.tokens else 0.0

    @property
    def context(self) -> float | None:
        """Average context length of such a token; None if it was not counted."""
        return self.positions / self.tokens if self.positions else None

    def add(self, seconds: float, tokens: int, context: float = 0.0) -> None:
        """Count a row at a context length, an interrupted one with at most ``OUTLIER`` times its expected seconds."""
        expected = self.token * tokens
        if expected:
            seconds = min(seconds, OUTLIER * expected)
        if self.rows < FEW and seconds < expected:  # the earlier rows ran on cold caches
            self.seconds = self.tokens = self.positions = 0.0
        self.seconds += seconds
        self.positions += tokens * (context + tokens / 2 if context else 0.0)
        self.tokens += tokens
        self.rows += 1

    def fade(self, share: float) -> None:
        """Reduce the weight of what was counted so far to this share."""
        self.seconds, self.tokens = share * self.seconds, share * self.tokens
        self.positions *= share


@dataclass(slots=True)
class Experience(Rows):
    """Faded sums over the rounds of all problems so far."""

    old: float = 0.0  # tokens written since the last measured row
    real: float = 0.0  # measured plain tokens of time in rounds that asked the drafter
    predicted: float = 0.0  # predicted for the same rounds
    waking: float = 0.0  # plain tokens that a drafter needs to read what it has not seen

    @property
    def factor(self) -> float:
        """Return measured over predicted time of rounds with a draft."""
        if not self.predicted:
            return 1.0
        # with a prior of rounds that went as predicted, because a single round says little
        return min(max((self.real + SURE) / (self.predicted + SURE), LEAST), MOST)

    def wrote(self, seconds: float, tokens: int, context: float = 0.0) -> None:
        """Count tokens that the target wrote in a row at a context length while no drafter read along."""
        if tokens < ENOUGH or seconds <= 0:
            return
        self.add(seconds, tokens, context)
        self.old = 0.0
        if self.tokens > MEMORY:
            self.fade(MEMORY / self.tokens)

    def drafted(self, real: float, predicted: float) -> None:
        """Count a round with a draft, in plain tokens of time."""
        self.real = FADES * self.real + real
        self.predicted = FADES * self.predicted + predicted

    def woke(self, excess: float) -> None:
        """Count the extra time of a draft whose drafter had much to read first."""
        share = WAKES if self.waking else 0.0
        self.waking = share * self.waking + (1 - share) * max(excess, 0.0)

    def told(self) -> dict[str, float]:
        """Return the sums as JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Rebuild it from ``told``; raise ValueError or TypeError if it is something else."""
        made = cls(**{name: float(value) for name, value in told.items()})
        if not all(0 <= getattr(made, one.name) < math.inf for one in fields(made)):
            raise ValueError(f"no sums: {told}")
        return made
