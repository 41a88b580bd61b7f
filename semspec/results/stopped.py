"""How much thinking a stopper saved, and how that changed the answers."""

from __future__ import annotations

from collections.abc import Callable

from semspec.decoding.hopeless import HOPELESS
from semspec.decoding.stopping import Thought
from semspec.types import Outcome

# keys in the details of a line of problems.jsonl
THINKING = "thinking_tokens"
STOPPED, LIMITED, TRIED = "stopped", "stopped_by_limit", "stop_trials"
GIVEN_UP = "stopped_as_hopeless"
ASKED, CHECKED = "stop_risk_asked", "stop_checked"
HARMED, MENDED, UNSTOPPED = "stop_harmed", "stop_mended", "unstopped_thinking_tokens"


def thought(outcome: Outcome, piece: Callable[[int], str], opened: bool) -> int:
    """Count the tokens of the thinking, without the words with which a stopper closed it."""
    reading = Thought(piece, opened)
    for done in outcome.rounds:
        if "closed" in done.stop:
            break
        for token in done.tokens:
            reading.feed(token)
    return reading.tokens


def counted(outcome: Outcome) -> dict[str, int]:
    """Count whether the thinking was closed, for which reason, and how often the stopper asked."""
    by = [done.stop["closed"] for done in outcome.rounds if "closed" in done.stop]
    tried = sum(len(done.stop.get("asked", ())) for done in outcome.rounds)
    return {
        STOPPED: len(by),
        LIMITED: by.count("limit"),
        GIVEN_UP: by.count(HOPELESS),
        TRIED: tried,
    }


def compared(correct: bool | None, otherwise: bool | None, tokens: int) -> dict[str, int]:
    """Compare an answer with the one without the stop, whose thinking took ``tokens``; {} if either is not graded."""
    if correct is None or otherwise is None:
        return {}
    harmed, mended = otherwise and not correct, correct and not otherwise
    return {CHECKED: 1, HARMED: int(harmed), MENDED: int(mended), UNSTOPPED: tokens}
