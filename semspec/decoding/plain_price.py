"""The price of a plain token among others: what drafts of several problems at a time are compared with.

The price of single queries (``known``) leaves out what lies between them. So the rows that all problems write side by side are
timed as a whole, and ``above`` says how much dearer a plain token is that way. Passes soon take longer or shorter than when
those rows were written (``drift``), and so does a plain token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from semspec.decoding.experience import Rows

FADES = 0.995  # weight of earlier rows at each new one
LEAST = 16  # least number of rows in the average of the latest ones


@dataclass(slots=True)
class PlainPrice:
    """The price of a plain token while ``size`` problems write."""

    size: int
    known: float = 0.0  # seconds of a plain token by the price of single queries, under this load
    drift: float = 1.0  # how many times as long passes take now as when they were measured
    rows: Rows = field(default_factory=Rows)  # in seconds at a drift of 1
    latest: Rows = field(default_factory=Rows)  # about a row of each problem
    # the price over ``known`` under a load that was measured, until rows of this one were
    elsewhere: float = 1.0
    # when the latest rows began and ended, tokens of the longest of them, their number, and the sums before them
    _batch: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _longest: int = field(default=0, init=False)
    _batched: int = field(default=0, init=False)
    _before: tuple[Rows, Rows] = field(default_factory=lambda: (Rows(), Rows()), init=False)

    @property
    def token(self) -> float:
        """Return the seconds of a plain token."""
        return self.rows.token * self.drift or self.known * self.elsewhere

    @property
    def steady(self) -> float:
        """Return the seconds of a plain token at a drift of 1, to compare prices of different times."""
        return self.token / self.drift

    @property
    def measured(self) -> bool:
        """True if rows were written side by side under this load."""
        return self.rows.token > 0

    @property
    def above(self) -> float:
        """Return the measured price over that of single queries."""
        return self.token / self.known if self.measured and self.known else self.elsewhere

    def now(self, known: float, drift: float) -> None:
        """Set the present price of single queries and the drift."""
        self.known, self.drift = known, drift

    def wrote(self, tokens: int, seconds: float, batch: tuple[float, float]) -> None:
        """Count a row of a batch: ``batch`` says when its rows began and ended.

        All of them took as long as the longest: the other texts ended within it.
        """
        if batch != self._batch:
            self._batch, self._batched, self._longest = batch, 0, 0
            self._before = replace(self.rows), replace(self.latest)
        again = self._batched if tokens > self._longest else 0
        if again:  # shorter ones were counted as if they had taken all that time
            self.rows, self.latest = map(replace, self._before)
        self._longest = max(tokens, self._longest)
        for _ in range(again + 1):
            self.rows.fade(FADES)
            self.rows.add(seconds / self.drift, self._longest)
            self.latest.fade(1 - 1 / max(self.size, LEAST))
            self.latest.add(seconds, self._longest)
        self._batched += 1

    def weigh(self, tokens: float) -> None:
        """Let all rows so far count as at most so many tokens for each problem, because new ones are about to be measured."""
        self.rows.fade(min(1.0, tokens * self.size / max(self.rows.tokens, 1.0)))

    def forget_latest(self) -> None:
        """Begin the average of the latest rows anew."""
        self.latest = Rows()
