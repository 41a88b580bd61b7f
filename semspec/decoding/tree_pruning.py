"""Pruning a draft tree before the target reads it: ARC-Decode's section 3.2, and its rivals (A.3.5).

Pure, vectorised tensor functions over the nodes of one tree: ``parents`` [n] (before their children,
-1 for the root), ``depths`` [n] (0 for children of the root), and the drafter's log-probabilities.
Each rule returns which nodes are kept, a bool [n]; the kept ones always form a tree.
"""

from __future__ import annotations

from semspec.deferred import Tensor, torch

RULES = ("none", "entropy", "depth", "depth_exp", "accum_prob")


def path_logprob(logprobs: Tensor, parents: Tensor, depths: Tensor) -> Tensor:
    """Return l(c): the draft's log-probability from the root to each node; NaN counts as -inf."""
    total = logprobs.double().nan_to_num(nan=-torch.inf, posinf=0.0, neginf=-torch.inf)
    for level in _levels(depths)[1:]:
        total[level] += total[parents[level]]
    return total


def confidence(path: Tensor, depths: Tensor, entropy: float, weight: float) -> Tensor:
    """Return q~(c) = exp(l(c)) exp(-lambda d(c) H_m) (eq. 1), with lambda=weight, H_m=entropy."""
    return path.exp() * torch.exp(-weight * entropy * depths.double())


def covering(score: Tensor, depths: Tensor, eps: float) -> Tensor:
    """Return K_d (eq. 3): the smallest set of each depth with 1 - eps of its mass; ties stay."""
    alike = depths[:, None] == depths
    above = (alike & (score > score[:, None])).double() @ score  # mass strictly above
    mass = alike.double() @ score
    return (above < (1 - eps) * mass) & (score > 0)


def entropy_guided(
    score: Tensor, parents: Tensor, depths: Tensor, eps: float, leaf: float = 0.0
) -> Tensor:
    """Return the kept set (eq. 4): mass coverage, prefix closure, leaf safety, reinsertion.

    Leaf thresholds are tau_d = max(theta_d, ``leaf``). A leaf above theta_d and below ``leaf`` is
    dropped, unless a kept node would lose its last child: that keeps its best one.
    """
    kept = covering(score, depths, eps)
    leaves = torch.ones_like(kept)
    leaves[parents[parents >= 0]] = False
    kept &= ~(leaves & (score < leaf))
    for level in _levels(depths):
        above = parents[level]
        stands = torch.where(above >= 0, kept[above], True)  # prefix closure
        kept[level] &= stands
        # reinsertion: the first of the best among the children of a kept parent without any
        family = above[:, None] == above
        orphans = stands & ~(family & kept[level]).any(-1)
        rank = torch.arange(len(level), device=score.device)
        own = score[level]
        better = (own > own[:, None]) | ((own == own[:, None]) & (rank < rank[:, None]))
        kept[level] |= orphans & ~(family & better).any(-1)
    return kept


def ranked(score: Tensor, parents: Tensor, depths: Tensor, share: float) -> Tensor:
    """Return the rivals' choice: the best ``share`` of nodes that have all their ancestors (A.3.5)."""
    count = max(1, round(share * len(score)))
    kept = torch.zeros_like(score, dtype=torch.bool)
    kept[score.sort(descending=True, stable=True).indices[:count]] = True
    for level in _levels(depths)[1:]:
        kept[level] &= kept[parents[level]]
    return kept


def rival_score(rule: str, path: Tensor, depths: Tensor, bias: float) -> Tensor:
    """Return a rival's score: linear or exponential bias towards depth, or the path's probability."""
    probability, biased = path.exp(), bias * depths.double()
    scores = {"depth": probability + biased, "depth_exp": probability * biased.exp()}
    return (scores | {"accum_prob": probability})[rule]


def _levels(depths: Tensor) -> list[Tensor]:
    """Return the nodes of each depth, from the root on."""
    last = int(depths.max()) if len(depths) else -1
    return [(depths == depth).nonzero()[:, 0] for depth in range(last + 1)]
