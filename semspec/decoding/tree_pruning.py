"""Pruning a draft tree before the target reads it: ARC-Decode's section 3.2, and its rivals (A.3.5).

Pure, vectorised tensor functions over the nodes of one tree: ``parents`` [n] (before their children,
-1 for the root), ``depths`` [n] (0 for what follows the root), and the drafter's log-probabilities.
Each rule returns which nodes are kept, a bool [n]; the kept ones always hang together.
"""

from __future__ import annotations

from semspec.deferred import Tensor, torch

RULES = ("none", "entropy", "depth", "depth_exp", "accum_prob")


def path_logprob(logprobs: Tensor, parents: Tensor, depths: Tensor) -> Tensor:
    """l(c): the log-probability of the draft from the root to each node; NaN counts as -inf."""
    total = logprobs.double().nan_to_num(nan=-torch.inf, posinf=0.0, neginf=-torch.inf)
    for level in _levels(depths)[1:]:
        total[level] += total[parents[level]]
    return total


def confidence(path: Tensor, depths: Tensor, entropy: float, weight: float) -> Tensor:
    """q~(c) = exp(l(c)) exp(-lambda d(c) H_m) (eq. 1); ``weight`` is lambda, ``entropy`` H_m."""
    return path.exp() * torch.exp(-weight * entropy * depths.double())


def covering(score: Tensor, depths: Tensor, eps: float) -> Tensor:
    """K_d (eq. 3): of every depth the smallest set with 1 - eps of the depth's mass; ties stay."""
    alike = depths[:, None] == depths
    above = (alike & (score > score[:, None])).double() @ score  # mass that is strictly above
    mass = alike.double() @ score
    return (above < (1 - eps) * mass) & (score > 0)


def entropy_guided(
    score: Tensor, parents: Tensor, depths: Tensor, eps: float, leaf: float = 0.0
) -> Tensor:
    """The kept set (eq. 4): mass coverage, prefix closure, leaf safety, reinsertion.

    Leaf thresholds are tau_d = max(theta_d, ``leaf``). A leaf above theta_d and below ``leaf`` goes,
    unless it is the last child of a kept node: that keeps its best one.
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
    """The rivals' way: the best ``share`` of all nodes by a score of their own, whatever hangs on them.

    A node whose ancestors are not among them cannot be verified and goes, too (A.3.5).
    """
    count = max(1, round(share * len(score)))
    kept = torch.zeros_like(score, dtype=torch.bool)
    kept[score.sort(descending=True, stable=True).indices[:count]] = True
    for level in _levels(depths)[1:]:
        kept[level] &= kept[parents[level]]
    return kept


def rival_score(rule: str, path: Tensor, depths: Tensor, bias: float) -> Tensor:
    """What a rival ranks by: linear or exponential bias towards depth, or the path's probability."""
    depth = depths.double()
    if rule == "depth":
        return path.exp() + bias * depth
    if rule == "depth_exp":
        return path.exp() * (bias * depth).exp()
    assert rule == "accum_prob", rule
    return path.exp()


def _levels(depths: Tensor) -> list[Tensor]:
    """The nodes of each depth, from the root on."""
    last = int(depths.max()) if len(depths) else -1
    return [(depths == depth).nonzero()[:, 0] for depth in range(last + 1)]
