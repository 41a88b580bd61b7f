"""Acceptance counted separately for the thinking and the answer, since it differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from semspec.decoding.thinking import Thinking
from semspec.results.metrics import ratio
from semspec.types import Round

PARTS = frozenset(
    f"{part}_{what}" for part in ("thinking", "answer") for what in ("gained", "drafts")
)


def by_part(rounds: Sequence[Round], piece: Callable[[int], str]) -> dict[str, int]:
    """Count verified drafts and the tokens gained by them, for each part; the round that closes the thinking is part of it.

    {} if the text has no thinking that ends.
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
    """Return the mean tokens gained per verified draft in one part."""
    return ratio(details[f"{part}_gained"], details[f"{part}_drafts"])
