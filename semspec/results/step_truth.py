"""Count accepted drafted steps that are wrong, if the benchmark knows the truth of steps."""

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
    """Count the steps of an output that were drafted and accepted as a whole, and the wrong ones among them.

    None if the benchmark does not grade steps. ``decode`` omits end-of-text tokens, as ``text`` does. What is salvaged
    from a rejected step does not count as accepted.
    """
    if not grade.steps:
        return None
    before = len(text) - len(decode(outcome.tokens))  # length of a tag opened by the prompt
    kept: list[tuple[int, int]] = []
    at = 0
    for done in outcome.rounds:
        if done.kept:
            ends = (at, at + len(done.kept))
            start, end = (before + len(decode(outcome.tokens[:n])) for n in ends)
            start = kept.pop()[0] if kept and kept[-1][1] == start else start
            kept.append((start, end))
        at += len(done.kept) + len(done.written) + len(done.handed)
    # the rule has not judged a last step that the budget cut off
    steps = grade.steps[:-1] if outcome.finish == "budget" else grade.steps
    written = [(start, start + len(text[start:end].rstrip()), true) for start, end, true in steps]
    found = [true for start, end, true in written if any(a <= start and end <= b for a, b in kept)]
    return {ACCEPTED: len(found), WRONG: found.count(False)}
