"""How much longer passes take now than when they were measured: one factor for all sizes under a load.

Where many problems share the passes, several things change at once: texts grow, answers end, others begin, other programs
run. Each makes passes of all sizes longer or shorter by about the same factor (64 problems with an embedded model: behind
300 positions instead of 60, passes over 1 to 7 tokens of each take 2.0 to 2.2 times as long). So what was measured last
under one size tells what the others would take now. A price for each cause cannot be found from such measurements: answers
end while the others grow.
"""

from __future__ import annotations

from dataclasses import dataclass

KEEPS = 0.6  # weight of the earlier factor at each new pass
MOST = 1.5  # most that a single pass can change


@dataclass(slots=True)
class Drift:
    """The factor of one model's passes under one load."""

    factor: float = 1.0

    def follow(self, found: float, passes: float) -> None:
        """Count ``passes`` in a row that took ``found`` times what they take at a factor of 1."""
        change = min(max(found / self.factor, 1 / MOST), MOST)
        self.factor *= change ** (1 - KEEPS**passes)
