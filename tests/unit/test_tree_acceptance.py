"""The arithmetic of token rules on trees, against exact laws and a slow reference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semspec.decoding.acceptance import (
    lossless_nodes,
    lossless_path,
    matching_nodes,
    remaining,
    residual,
    shape_of,
    walk,
)
from semspec.decoding.sampling import draw
from semspec.errors import UserError

CPU = torch.device("cpu")
P = torch.tensor([0.35, 0.25, 0.20, 0.15, 0.05])


def family(p: Tensor, tokens: Sequence[int], q: Tensor | None) -> Tensor:
    """The exact law of the token that comes out of one node with these children.

    A node is accepted for all uniform numbers below its chance, which bisection finds.
    """
    n = len(tokens)
    ids, shape = torch.tensor(tokens), shape_of([-1] * n, n, CPU)
    rows = p.expand(n + 1, -1)
    qs = None if q is None else q.expand(n, -1)
    low, high = torch.zeros(n, dtype=p.dtype), torch.ones(n, dtype=p.dtype)
    for _ in range(32):
        middle = (low + high) / 2
        accepted = lossless_nodes(rows, ids, shape, qs, middle)
        low, high = torch.where(accepted, middle, low), torch.where(accepted, high, middle)
    out, left = torch.zeros_like(p), 1.0
    for token, chance in zip(tokens, ((low + high) / 2).tolist(), strict=True):
        out[token] += left * chance
        left *= 1 - chance
    return out + left * remaining(rows, ids.tolist(), shape, qs, [])


def orders(q: Tensor, count: int) -> list[tuple[tuple[int, ...], float]]:
    """All ways to draw siblings without replacement, with their probabilities."""
    found = []
    for tokens in itertools.permutations(range(len(q)), count):
        chance, rest = 1.0, q.clone()
        for token in tokens:
            total = float(rest.sum())
            chance *= float(rest[token]) / total if total > 0 else 0.0
            rest[token] = 0.0
        if chance > 0:
            found.append((tokens, chance))
    return found


def test_the_worked_example_emits_p() -> None:
    """Three deterministic siblings; one draw of its own for each branch does not."""
    assert torch.allclose(family(P, [0, 1, 2], None), P, atol=1e-6)
    independent, left = torch.zeros(5), 1.0
    for sibling in (0, 1, 2):
        independent[sibling] += left * P[sibling]
        left *= float(1 - P[sibling])
    independent += left * P
    assert torch.allclose(independent, torch.tensor([0.49, 0.26, 0.17, 0.06, 0.02]), atol=0.006)


rows_of_five = st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.5]), min_size=5, max_size=5).filter(
    lambda weights: sum(weights) > 0
)


def normal(weights: Sequence[float]) -> Tensor:
    row = torch.tensor(weights, dtype=torch.float64)
    return row / row.sum()


@settings(max_examples=60, deadline=None)
@given(rows_of_five, st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_any_deterministic_siblings_emit_p(weights: list[float], siblings: list[int]) -> None:
    """Also duplicates among them, and tokens that p never says."""
    p = normal(weights)
    assert torch.allclose(family(p, siblings, None), p, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(rows_of_five, rows_of_five, st.integers(1, 3))
def test_sampled_siblings_emit_p(ps: list[float], qs: list[float], count: int) -> None:
    """Summed over everything that could have been drawn, in every order."""
    p, q = normal(ps), normal(qs)
    count = min(count, int((q > 0).sum()))
    law = sum(chance * family(p, tokens, q) for tokens, chance in orders(q, count))
    assert isinstance(law, Tensor) and torch.allclose(law, p, atol=1e-9)


def test_siblings_that_were_not_drawn_are_point_masses_among_those_that_were() -> None:
    p, q = normal([3, 1, 1, 2, 3]), normal([1, 1, 0, 0, 0])
    law = torch.zeros(5, dtype=torch.float64)
    for tokens, chance in orders(q, 1):  # then a copy of it, and one that q never says
        law += chance * family(p, [*tokens, *tokens, 3], q)
    assert torch.allclose(law, p, atol=1e-9)


def test_wrong_rules_do_not_emit_p() -> None:
    """p/q for siblings that were not drawn; and for some that were, but sorted afterwards."""
    p, q = normal([3, 1, 1, 2, 3]), normal([5, 3, 1, 1, 1])
    assert (family(p, [0, 1, 2], q) - p).abs().max() > 0.1
    law = torch.zeros(5, dtype=torch.float64)
    for tokens, chance in orders(q, 2):
        law += chance * family(p, sorted(tokens), q)
    assert (law - p).abs().max() > 1e-3


def slow(
    p: Tensor,
    q: Tensor | None,
    tokens: Sequence[int],
    parents: Sequence[int],
    uniforms: Sequence[float],
) -> tuple[list[int], Tensor]:
    """The rule as the papers write it: one node after the other."""
    path: list[int] = []
    at = -1
    while True:
        own = p[at + 1].clone()
        rest = None
        for node in (n for n in range(len(tokens)) if parents[n] == at):
            x = tokens[node]
            if q is None:
                rest = torch.zeros_like(own)
                rest[x] = 1.0
            elif rest is None:
                rest = q[node].clone()
            if uniforms[node] < own[x] / rest[x]:
                path.append(node)
                at = node
                break
            own = (own - rest).clamp_min(0)
            own[x] = 0.0
            own = own / own.sum()
            rest[x] = 0.0
            rest = rest / rest.sum()
        else:
            return path, own


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_whole_trees_are_walked_as_the_papers_say(seed: int, sampled: bool) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    vocabulary, count = 12, rng.randrange(1, 20)
    parents = [rng.randrange(-1, min(node, 6)) for node in range(count)]
    p = torch.randn(count + 1, vocabulary, generator=generator).mul(1.5).softmax(-1)
    by_parent = torch.randn(count + 1, vocabulary, generator=generator).mul(1.5).softmax(-1)
    q = by_parent[[parent + 1 for parent in parents]]
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        row = q[node].clone()
        row[[t for t, up in zip(tokens, parents, strict=False) if up == parent]] = 0.0
        tokens.append(draw(row, rng.random()))
    given_q = q if sampled else None
    uniforms = [rng.random() for _ in tokens]
    ids, shape = torch.tensor(tokens), shape_of(parents, count, CPU)
    accepted = lossless_nodes(p, ids, shape, given_q, torch.tensor(uniforms))
    path = walk(accepted, shape)
    expected, row = slow(p, given_q, tokens, parents, uniforms)
    assert path == expected
    assert path == lossless_path(p, tokens, shape, given_q, uniforms)
    if path:  # an end of text is the last one that is kept
        assert lossless_path(p, tokens, shape, given_q, uniforms, {tokens[path[0]]}) == path[:1]
    loose = [rng.random() < 0.3 for _ in tokens]  # kept by a looser rule, whatever this one says
    looser = walk(accepted | torch.tensor(loose), shape)
    assert looser == lossless_path(p, tokens, shape, given_q, uniforms, loose=loose)
    assert torch.allclose(remaining(p, ids.tolist(), shape, given_q, path), row, atol=1e-5)


def test_greedy_follows_the_argmax_and_ends_with_the_text() -> None:
    parents, tokens = [-1, -1, 0, 1, 1, 4], torch.tensor([3, 5, 1, 7, 2, 6])
    best = torch.tensor([5, 0, 2, 0, 0, 6, 8])  # after the root, node 0, node 1, ...
    shape = shape_of(parents, 6, CPU)
    accepted = matching_nodes(best, tokens, shape)
    assert walk(accepted, shape) == [1, 4, 5]
    assert walk(accepted, shape, tokens.tolist(), {2}) == [1, 4]
    hot = torch.nn.functional.one_hot(best, 9).float()  # temperature 0: the same, by chances
    halves = torch.full((6,), 0.5)
    assert walk(lossless_nodes(hot, tokens, shape, None, halves), shape) == [1, 4, 5]
    assert lossless_path(hot, tokens.tolist(), shape, None, [0.5] * 6) == [1, 4, 5]
    assert remaining(hot, tokens.tolist(), shape, None, [1, 4, 5]).argmax() == 8


@pytest.mark.parametrize("sampled", [True, False])
def test_rows_with_nan_are_treated_as_missing(sampled: bool) -> None:
    """q that is not a number was not drawn from; p that is none leaves nothing to write."""
    parents, tokens = [-1, -1, 0], torch.tensor([0, 1, 2])
    shape = shape_of(parents, 3, CPU)
    p = P.repeat(4, 1)
    broken = torch.full((3, 5), torch.nan)
    uniforms = torch.tensor([0.34, 0.1, 0.1])
    assert lossless_nodes(p, tokens, shape, broken, uniforms).tolist() == [True] * 3
    expected = P * torch.tensor([0, 0, 1, 1, 1]) / 0.4
    assert torch.allclose(remaining(p, tokens.tolist(), shape, broken, []), expected)
    p[0] = torch.nan
    q = P.repeat(3, 1) if sampled else None
    assert walk(lossless_nodes(p, tokens, shape, q, uniforms), shape) == []
    assert lossless_path(p, tokens.tolist(), shape, q, uniforms.tolist()) == []
    with pytest.raises(UserError, match="probabilities sum to nan"):
        draw(remaining(p, tokens.tolist(), shape, q, []), 0.5)
    with pytest.raises(UserError, match="sum to 0"):
        draw(torch.zeros(5), 0.5)


def test_a_rejection_that_leaves_nothing_leaves_p() -> None:
    """Rounding alone leads there: p and q are equal, or one token is certain."""
    shape = shape_of([-1, -1], 2, CPU)
    assert torch.equal(residual(P, 0, P), P)
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert torch.equal(remaining(sure, [0, 0], shape, None, []), sure[0])
    flags = lossless_nodes(sure, torch.tensor([0, 1]), shape, None, torch.tensor([0.999, 0.0]))
    assert flags.tolist() == [True, False]
