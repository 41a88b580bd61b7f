"""Choose two thresholds such that few steps that pass either of them are ones that the target would not write.

A step is *settled* if the draft's own score reaches ``sure``; the target scores only the others. For a given share of
settled steps, ``sure`` is a quantile of the draft's scores, and the cascade has one score left: settled steps come first,
all tied, then the others by the target's score. Its threshold is certified like any other (``calibration.risk``), over all
accepted steps, settled or not. Several shares are tried, each at its part of delta, so that any certified one may be
taken; no label is looked at before the shares, the quantiles and the order of the steps are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.calibration.risk import certify
from semspec.errors import UserError

SHARES = (0.9, 0.75, 0.5, 0.25)  # of the steps, to settle by the draft's score; 0 is tried, too
SETTLED = 1.0  # above every log-probability
# cost of writing a rejected step, in passes that read a step: which certified share is taken depends on it, the
# guarantee does not
WRITES = 16.0


@dataclass(frozen=True, slots=True)
class CertifiedCascade:
    """Certified thresholds and the figures behind them."""

    sure: float  # of the draft; above 0: it settles nothing
    threshold: float  # of the target; above 0: it accepts nothing that is not settled
    settled: float  # share of the calibration's steps
    accepted: float  # share of the calibration's steps, settled ones included
    steps: int  # accepted steps that were tested, one of each problem
    wrong: int  # of these, below ``least``
    bound: float  # upper confidence bound of the risk

    @property
    def work(self) -> float:
        """Return about how many passes the target makes per step, to read it and to write it if rejected."""
        return 1 - self.settled + WRITES * (1 - self.accepted)


def certify_cascade(
    drafts: Sequence[float],
    scores: Sequence[float],
    semantic: Sequence[float],
    groups: Sequence[int],
    *,
    risk: float,
    least: float,
    delta: float = 0.05,
) -> CertifiedCascade:
    """Return the certified thresholds that leave the target the least work; raise UserError if there are none."""
    found: list[CertifiedCascade] = []
    failed: UserError | None = None
    part = delta / (len(SHARES) + 1)
    for share in (*SHARES, 0.0):
        sure = quantile_above(drafts, share)
        combined = [
            SETTLED if own >= sure else score for own, score in zip(drafts, scores, strict=True)
        ]
        try:
            made = certify(combined, semantic, groups, risk=risk, least=least, delta=part)
        except UserError as error:
            failed = error
            continue
        count = len(combined)
        settled = sum(score == SETTLED for score in combined) / count
        accepted = sum(score >= made.threshold for score in combined) / count
        found.append(
            CertifiedCascade(
                sure, made.threshold, settled, accepted, made.steps, made.wrong, made.bound
            )
        )
    if not found:
        assert failed is not None
        raise failed
    return min(found, key=lambda one: one.work)


def quantile_above(values: Sequence[float], share: float) -> float:
    """Return a value that at most this share of the values reaches; one above all if none may."""
    count = int(share * len(values))
    ordered = sorted(values, reverse=True)
    while count and count < len(ordered) and ordered[count] == ordered[count - 1]:
        count -= 1  # tied values are settled together or not at all
    return ordered[count - 1] if count else SETTLED
