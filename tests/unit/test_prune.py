"""Pruning draft trees: the invariants of ARC-Decode's section 3.2, on any tree."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.tree_pruning import (
    confidence,
    covering,
    entropy_guided,
    path_logprob,
    ranked,
    rival_score,
)
from semspec.decoding.trim import depths


@st.composite
def trees(draw: Any) -> tuple[list[int], list[int], list[float]]:
    """Parents, depths (0 below the root) and log-probabilities, a few of them impossible."""
    count = draw(st.integers(1, 40))
    parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
    chance = st.one_of(st.floats(0.001, 1.0), st.sampled_from([0.5, 0.0, math.nan]))
    chances = [draw(chance) for _ in range(count)]
    own = [math.log(p) if p else -math.inf for p in chances]
    return parents, [depth - 1 for depth in depths(parents)], own


def slow_kept(
    score: list[float], parents: list[int], depth: list[int], eps: float, leaf: float
) -> list[bool]:
    """Section 3.2, one node after the other."""
    count = len(score)
    kept = [False] * count
    for level in range(max(depth) + 1):
        nodes = [c for c in range(count) if depth[c] == level]
        mass = sum(score[c] for c in nodes)
        covered, threshold = 0.0, math.inf
        for c in sorted(nodes, key=lambda c: -score[c]):  # the largest threshold that covers enough
            if covered >= (1 - eps) * mass:
                break
            covered += score[c]
            threshold = score[c]
        for c in nodes:
            is_leaf = c not in parents
            safe = not is_leaf or score[c] >= leaf
            above = parents[c] < 0 or kept[parents[c]]
            kept[c] = score[c] >= threshold and score[c] > 0 and safe and above
        for parent in {parents[c] for c in nodes}:
            family = [c for c in nodes if parents[c] == parent]
            if (parent < 0 or kept[parent]) and not any(kept[c] for c in family):
                kept[max(family, key=lambda c: (score[c], -c))] = True
    return kept


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tree=trees(),
    eps=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
    weight=st.sampled_from([0.0, 1.0, 4.0]),
    entropy=st.floats(0, 1),
    leaf=st.sampled_from([0.0, 1e-3, 0.2]),
)
def test_pruned_trees_equal_a_plain_loop(
    tree: Any, eps: float, weight: float, entropy: float, leaf: float
) -> None:
    parents, depth, own = tree
    path = path_logprob(own, parents)
    score = confidence(path, depth, entropy, weight)
    kept = entropy_guided(score, parents, depth, eps, leaf)

    # the same as the slow way (up to rounding at a threshold, which random numbers do not meet)
    assert kept == slow_kept(score, parents, depth, eps, leaf)

    # prefix closure: every kept node's parent is kept
    assert all(p < 0 or kept[p] for p, k in zip(parents, kept, strict=True) if k)

    # no kept node that had children is a leaf now, and the root has a child
    families = {p: [n for n, above in enumerate(parents) if above == p] for p in parents}
    for node, family in families.items():
        if node < 0 or kept[node]:
            assert any(kept[child] for child in family)

    # leaf safety: a leaf below its threshold is there only as a kept node's last child
    for node, stays in enumerate(kept):
        if stays and node not in families and score[node] < leaf:
            assert sum(kept[sibling] for sibling in families[parents[node]]) == 1

    # mass coverage of every depth, before closure: the smallest set that has enough
    inside = covering(score, depth, eps)
    for level in range(max(depth) + 1):
        at = [node for node, own_depth in enumerate(depth) if own_depth == level]
        mass = sum(score[node] for node in at)
        covered = [score[node] for node in at if inside[node]]
        assert sum(covered) >= (1 - eps) * mass - 1e-12
        if covered:
            assert sum(own for own in covered if own > min(covered)) < (1 - eps) * mass


@settings(max_examples=50, deadline=None)
@given(tree=trees(), rule=st.sampled_from(["depth", "depth_exp", "accum_prob"]))
def test_other_rules_keep_whole_paths(tree: Any, rule: str) -> None:
    parents, depth, own = tree
    score = rival_score(rule, path_logprob(own, parents), depth, 0.2)
    kept = ranked(score, parents, 0.6)
    assert all(p < 0 or kept[p] for p, k in zip(parents, kept, strict=True) if k)
    best = sorted(range(len(score)), key=lambda node: -score[node])
    best = best[: max(1, round(0.6 * len(kept)))]
    for node, parent in enumerate(parents):
        assert kept[node] == (node in best and (parent < 0 or kept[parent]))


@pytest.mark.parametrize("rule", ["depth", "depth_exp", "accum_prob"])
def test_scores_stay_numbers_whatever_the_bias(rule: str) -> None:
    score = rival_score(rule, [0.0, -1.0, -math.inf], [0, 1, 2], 1e6)
    assert all(math.isfinite(own) for own in score)
    assert ranked(score, [-1, 0, 1], 1.0) == [True, True, True]


def test_confidence_and_thresholds_equal_the_equations() -> None:
    parents, depth = [-1, -1, 0, 2], [0, 0, 1, 2]
    path = path_logprob([math.log(p) for p in (0.6, 0.3, 0.5, 0.4)], parents)
    assert [math.exp(own) for own in path] == pytest.approx([0.6, 0.3, 0.3, 0.12])
    score = confidence(path, depth, 0.5, 2.0)  # exp(-lambda d H) = exp(-d)
    assert score == pytest.approx([0.6, 0.3, 0.3 * math.exp(-1), 0.12 * math.exp(-2)])
    assert covering(score, depth, 0.4) == [True, False, True, True]
    assert rival_score("depth", path, depth, 0.1) == pytest.approx([0.6, 0.3, 0.4, 0.32])
    bent = [0.6, 0.3, 0.3 * math.exp(0.1), 0.12 * math.exp(0.2)]
    assert rival_score("depth_exp", path, depth, 0.1) == pytest.approx(bent)
    assert rival_score("accum_prob", path, depth, 0.1) == pytest.approx([0.6, 0.3, 0.3, 0.12])


@settings(max_examples=50, deadline=None)
@given(tree=trees(), weight=st.sampled_from([0.5, 4.0]))
def test_depth_and_entropy_matter_only_through_leaf_thresholds(tree: Any, weight: float) -> None:
    """exp(-lambda d H) is the same for all nodes of a depth, and eq. 3 goes by shares of a depth."""
    parents, depth, own = tree
    path = path_logprob(own, parents)
    flat = entropy_guided(confidence(path, depth, 0.7, 0.0), parents, depth, 0.05)
    bent = entropy_guided(confidence(path, depth, 0.7, weight), parents, depth, 0.05)
    assert flat == bent, "with tau_d = theta_d, lambda changes nothing"
