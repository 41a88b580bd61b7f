"""Prune a draft tree before the target reads it: ARC-Decode's section 3.2 and its rivals (A.3.5).

Pure functions over the nodes of one tree: ``parents`` (before their children, -1 for the root),
``depths`` (0 for children of the root), and the drafter's log-probabilities. Each rule returns for
every node whether it is kept; the kept nodes always form a tree. For the few dozen nodes of a tree,
plain Python loops take a fifth of the time of tensor operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST = 700.0  # largest exponent of a score, against overflow
RULES = ("none", "entropy", "depth", "depth_exp", "accum_prob")


def path_logprob(logprobs: Sequence[float], parents: Sequence[int]) -> list[float]:
    """Return l(c): the draft's log-probability from the root to each node; NaN counts as -inf."""
    total: list[float] = []
    for own, parent in zip(logprobs, parents, strict=True):
        above = total[parent] if parent >= 0 else 0.0
        total.append(-math.inf if math.isnan(own) else above + min(own, 0.0))
    return total


def confidence(
    path: Sequence[float], depths: Sequence[int], entropy: float, weight: float
) -> list[float]:
    """Return q~(c) = exp(l(c)) exp(-lambda d(c) H_m) (eq. 1), with lambda=weight, H_m=entropy."""
    return [
        math.exp(own) * math.exp(-weight * entropy * depth)
        for own, depth in zip(path, depths, strict=True)
    ]


def covering(score: Sequence[float], depths: Sequence[int], eps: float) -> list[bool]:
    """Return K_d (eq. 3): at each depth, the smallest set with 1 - eps of the mass; ties stay."""
    kept = [False] * len(score)
    for level in _levels(depths):
        wanted = (1 - eps) * math.fsum(score[node] for node in level)
        covered = above = 0.0  # mass so far; mass of nodes with strictly higher scores
        last = math.inf
        for node in sorted(level, key=lambda node: -score[node]):
            if score[node] < last:
                above, last = covered, score[node]
            kept[node] = above < wanted and last > 0
            covered += last
    return kept


def entropy_guided(
    score: Sequence[float],
    parents: Sequence[int],
    depths: Sequence[int],
    eps: float,
    leaf: float = 0.0,
) -> list[bool]:
    """Return the kept set (eq. 4): mass coverage, prefix closure, leaf safety, reinsertion.

    Leaf thresholds are tau_d = max(theta_d, ``leaf``). A leaf above theta_d and below ``leaf`` is
    dropped, unless a kept node would lose its last child: that keeps its best one.
    """
    kept = covering(score, depths, eps)
    inner = set(parents)
    for level in _levels(depths):
        families: dict[int, list[int]] = {}
        for node in level:
            above = parents[node]
            stands = above < 0 or kept[above]  # prefix closure
            kept[node] &= stands and (node in inner or score[node] >= leaf)
            if stands:
                families.setdefault(above, []).append(node)
        for family in families.values():
            if not any(kept[node] for node in family):  # reinsert the first of the best
                kept[max(family, key=lambda node: score[node])] = True
    return kept


def ranked(score: Sequence[float], parents: Sequence[int], share: float) -> list[bool]:
    """Return the rivals' choice (A.3.5): of the best ``share`` of nodes, those with all their ancestors."""
    count = max(1, round(share * len(score)))
    best = set(sorted(range(len(score)), key=lambda node: -score[node])[:count])
    kept: list[bool] = []
    for node, parent in enumerate(parents):
        kept.append(node in best and (parent < 0 or kept[parent]))
    return kept


def rival_score(
    rule: str, path: Sequence[float], depths: Sequence[int], bias: float
) -> list[float]:
    """Return a rival's score: a linear or exponential bias towards depth, or the path's probability."""
    if rule == "depth":
        return [math.exp(own) + bias * depth for own, depth in zip(path, depths, strict=True)]
    # without a bias, the path's probability alone
    bias = {"depth_exp": bias, "accum_prob": 0.0}[rule]
    return [
        math.exp(min(own + bias * depth, LARGEST)) for own, depth in zip(path, depths, strict=True)
    ]


def _levels(depths: Sequence[int]) -> list[list[int]]:
    """Return the nodes of each depth, from the root."""
    levels: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for node, depth in enumerate(depths):
        levels[depth].append(node)
    return levels
