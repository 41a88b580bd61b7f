"""Count what ARC-Decode's pruning dropped, and by which side of its bound tokens were kept.

Counts are kept a problem, as whole numbers that can be added up; shares are made of them at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from semspec.types import Round

SIDES = ("embedding", "logit", "both")


def count(rounds: Iterable[Round]) -> dict[str, int]:
    """Add up what the rule has counted in each round (``Verdict.counts``)."""
    counts: Counter[str] = Counter()
    for r in rounds:
        counts.update(r.counts)
    return dict(counts)


def pruned(counts: Mapping[str, int]) -> float | None:
    """Return rho, the share of the drafted nodes that were dropped before the target's pass (table 4).

    None where no tree met a rule that prunes. ``drafted_tokens`` does not have the dropped ones.
    """
    return counts.get("pruned", 0) / counts["grown"] if counts.get("grown") else None


def figures(counts: Mapping[str, int]) -> dict[str, Any] | None:
    """Return which side of the bound kept tokens; None where it kept none but the target's likeliest.

    - ``loose``: drafted nodes that the bound keeps if they are reached; ``kept``: those that the text went
      along. Neither has the target's likeliest tokens, for which both sides are 0.
    - ``nodes``: how many; ``embedding`` and ``logit``: the share that this side alone lets through,
      ``both``: that either would; ``rare``: the share to which the target gives less than 1e-3.
    """
    found = {part: _part(counts, part) for part in ("loose", "kept")}
    return found if found["loose"] else None


def _part(counts: Mapping[str, int], part: str) -> dict[str, float] | None:
    nodes = sum(counts.get(f"{part}_{side}", 0) for side in SIDES)
    if not nodes:
        return None
    shares = {name: counts.get(f"{part}_{name}", 0) / nodes for name in (*SIDES, "rare")}
    return {"nodes": nodes, **shares}
