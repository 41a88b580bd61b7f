"""Acceptance in the thinking and in the answer, told apart: drafts fare differently in the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from semspec.decoding.thinking import Thinking
from semspec.results.metrics import ratio
from semspec.types import Round

PARTS = frozenset(
    f"{part}_{what}" for part in ("thinking", "answer") for what in ("gained", "drafts")
)


def by_part(rounds: Sequence[Round], piece: Callable[[int], str]) -> dict[str, int]:
    """Count verifications and the tokens that they gained; a round that closes the thinking belongs to it.

    {} for a text without a thinking that ends: there is nothing to tell apart.
    """
    thinking, counts = Thinking(piece), dict.fromkeys(sorted(PARTS), 0)
    for done in rounds:
        part = "answer" if thinking.over else "thinking"
        if done.drafted:
            counts[f"{part}_drafts"] += 1
            counts[f"{part}_gained"] += len(done.kept) + len(done.written)
        thinking.feed(done.tokens)
    return counts if thinking.over else {}


def part_length(details: Mapping[str, float], part: str) -> float | None:
    """Return the tokens of a verification in one part."""
    return ratio(details[f"{part}_gained"], details[f"{part}_drafts"])
