"""How much longer passes take now than when they were measured: one factor for all sizes under a load.

Where many problems share the passes, several things change at once: texts grow, answers end, others begin, other programs
run. Each makes passes of all sizes longer or shorter by about the same factor (64 problems with an embedded model: behind
300 positions instead of 60, passes over 1 to 7 tokens of each take 2.0 to 2.2 times as long). So what was measured last
under one size tells what the others would take now. A price for each cause cannot be found from such measurements: answers
end while the others grow.

Passes that read drafts and rows that are written do not change quite alike. What looks like a change at the moment of turning from
one to the other is partly a difference between the two, and does not come back at the next turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEEPS = 0.6  # weight of the earlier factor at each new pass
MOST = 1.5  # most that a single pass can change
TURNING = (
    5.0  # passes after turning from writing to reading, or back, in which the difference shows
)
DIFFERS = 0.5  # share of what changes then that is a difference between the two


@dataclass(slots=True)
class Drift:
    """The factor of one model's passes under one load."""

    factor: float = 1.0  # of written rows
    reading: float = 1.0  # of passes that read drafts, over that of written rows
    _reads: bool | None = field(default=None, init=False)  # the last passes were of this kind ...
    _since: float = field(default=0.0, init=False)  # ... and there were so many

    def of(self, reads: bool) -> float:
        """Return the factor of passes that read drafts, or of rows that are written."""
        return self.factor * self.reading if reads else self.factor

    def follow(self, found: float, passes: float, reads: bool) -> None:
        """Count ``passes`` in a row that took ``found`` times what they take at a factor of 1."""
        change = min(max(found / self.of(reads), 1 / MOST), MOST)
        change **= 1 - KEEPS**passes
        if self._reads is not reads:
            turning = self._reads is not None
            self._reads, self._since = reads, 0.0 if turning else TURNING
        difference = change**DIFFERS if self._since < TURNING else 1.0
        self._since += passes
        if reads:
            self.factor *= change / difference
            self.reading *= difference
        else:
            self.factor *= change
            self.reading /= difference
