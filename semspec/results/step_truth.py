"""Count the accepted drafted steps that are wrong, where the benchmark knows the truth of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semspec.protocols import Grade
from semspec.types import Outcome

ASKED, LEAST = "risk_asked", "risk_least"
ACCEPTED, WRONG = "accepted_steps", "accepted_steps_wrong"

Decode = Callable[[Sequence[int]], str]


def accepted_steps(
    outcome: Outcome, text: str, grade: Grade, decode: Decode
) -> dict[str, int] | None:
    """Count steps of a turn that were drafted and accepted whole, and those of them that are wrong.

    None where the benchmark knows nothing of steps. ``decode`` leaves ends of text out, as ``text``
    does; what is salvaged of a rejected step was not accepted.
    """
    if not grade.steps:
        return None
    before = len(text) - len(decode(outcome.tokens))  # a tag that the prompt has opened
    kept: list[tuple[int, int]] = []
    at = 0
    for done in outcome.rounds:
        if done.kept:
            ends = (at, at + len(done.kept))
            start, end = (before + len(decode(outcome.tokens[:n])) for n in ends)
            start = kept.pop()[0] if kept and kept[-1][1] == start else start
            kept.append((start, end))
        at += len(done.kept) + len(done.written) + len(done.handed)
    # what the budget cut off is no step that anybody judged
    steps = grade.steps[:-1] if outcome.finish == "budget" else grade.steps
    written = [(start, start + len(text[start:end].rstrip()), true) for start, end, true in steps]
    found = [true for start, end, true in written if any(a <= start and end <= b for a, b in kept)]
    return {ACCEPTED: len(found), WRONG: found.count(False)}
