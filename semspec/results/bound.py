"""Count what ARC-Decode's pruning dropped, and which side of its bound kept tokens.

Each problem keeps whole numbers that can be added up; shares are computed at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from semspec.types import Round

SIDES = ("embedding", "logit", "both")


def count(rounds: Iterable[Round]) -> dict[str, int]:
    """Add up the rule's counts over the rounds (``Verdict.counts``)."""
    counts: Counter[str] = Counter()
    for r in rounds:
        counts.update(r.counts)
    return dict(counts)


def pruned(counts: Mapping[str, int]) -> float | None:
    """Return rho, the share of drafted nodes that were pruned before the target's pass (table 4).

    None if no rule pruned a tree. ``drafted_tokens`` does not include pruned nodes.
    """
    return counts.get("pruned", 0) / counts["grown"] if counts.get("grown") else None


def figures(counts: Mapping[str, int]) -> dict[str, Any] | None:
    """Return which side of the bound kept tokens; None if it kept only the target's likeliest tokens.

    - ``loose``: drafted nodes that the bound would keep if reached; ``kept``: those on the accepted path. Neither
      includes the target's likeliest tokens, for which both sides are 0.
    - ``nodes``: their number; ``embedding``, ``logit``: the share that only this side accepts; ``both``: the share
      that either side accepts; ``rare``: the share with a target probability below 1e-3.
    """
    found = {part: _part(counts, part) for part in ("loose", "kept")}
    return found if found["loose"] else None


def _part(counts: Mapping[str, int], part: str) -> dict[str, float] | None:
    nodes = sum(counts.get(f"{part}_{side}", 0) for side in SIDES)
    if not nodes:
        return None
    shares = {name: counts.get(f"{part}_{name}", 0) / nodes for name in (*SIDES, "rare")}
    return {"nodes": nodes, **shares}
