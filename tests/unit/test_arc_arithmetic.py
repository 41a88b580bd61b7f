"""ARC-Decode's arithmetic against the paper's equations, written out slowly; and infinite or undefined numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.arc_bound import (
    CLAMP,
    LARGEST_JS,
    Constants,
    Moments,
    bounds,
    distance,
    inverse_deviation,
    loose_nodes,
    lts,
    margin,
    next_step_js,
    normalised_entropy,
    sides,
)
from tests.support.arc import slow_js, slow_u

BY = Constants(0.03, 0.7, 0.4)


def rows(seed: int, count: int, vocabulary: int, sharpness: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(count, vocabulary, generator=generator)).softmax(-1)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000), top=st.integers(1, 14), sharpness=st.sampled_from([0.1, 2.0, 9])
)
def test_divergence_equals_a_plain_loop(seed: int, top: int, sharpness: float) -> None:
    q, r = rows(seed, 3, 12, sharpness), rows(seed + 1, 3, 12, sharpness)
    found = next_step_js(q, r, top, 1e-3)
    for i in range(3):
        wanted = slow_js(q[i].tolist(), r[i].tolist(), top, 1e-3)
        assert float(found[i]) == pytest.approx(wanted, abs=1e-6)
    assert bool(((found >= 0) & (found <= LARGEST_JS)).all())
    assert next_step_js(q, q, top, 1e-3).abs().max() == 0


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_bounds_equal_a_plain_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(9, 4, generator=generator) * torch.tensor([3.0, 1.0, 0.1, 0.0])
    moments = Moments()
    for part in (table[:2], table[2:2], table[2:7], table[7:]):
        moments.add(part)
    sigma = moments.deviation()
    assert torch.allclose(sigma, table.std(0, correction=0), atol=1e-6)
    whitened = table * inverse_deviation(sigma)
    p = rows(seed, 9, 9)[:, 0]
    best = p.clamp_min(0.3)
    drafted, likeliest = torch.arange(9), torch.arange(9).flip(0)
    u = bounds(distance(whitened[drafted], whitened[likeliest]), margin(best, p), BY)
    score = lts(u, BY.tau)
    for i in range(9):
        wanted = slow_u(
            table[drafted[i]].tolist(),
            table[likeliest[i]].tolist(),
            sigma.tolist(),
            float(p[i]),
            float(best[i]),
            BY,
        )
        assert float(u[i]) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert float(score[i]) == pytest.approx(1 - wanted / 0.4, rel=1e-4, abs=1e-5)
    assert score[4] == 1 or u[4] > 0  # the same token: only its margin counts


def test_bounds_are_infinite_where_a_probability_is_missing() -> None:
    nan, inf = math.nan, math.inf
    p_drafted = torch.tensor([0.0, nan, 0.5, 0.5, -inf, 0.2])
    p_best = torch.tensor([0.5, 0.5, nan, 0.0, 0.5, 0.2])
    margins = margin(p_best, p_drafted)
    clamped = math.log(0.5) - math.log(CLAMP)
    assert margins[:2].tolist() == pytest.approx([clamped, clamped])
    u = bounds(torch.full((6,), 1e6), margins, BY)
    assert u[0] == pytest.approx(0.7 * clamped**2, rel=1e-5)
    assert u[2] == inf and u[3] == inf, "without a likeliest token there is nothing to compare with"
    assert u[4] == pytest.approx(0.7 * clamped**2, rel=1e-5)
    assert u[5] == 0
    distances = torch.tensor([nan, inf, 1.0])
    u = bounds(distances, torch.tensor([0.0, 1.0, inf]), BY)
    assert u[0] == inf and u[1] == pytest.approx(0.7) and u[2] == pytest.approx(0.03)


def test_scores_are_exact_at_the_edges_of_the_threshold() -> None:
    u = torch.tensor([0.0, 0.4, math.inf])
    assert lts(u, 0.4).tolist() == [1.0, 0.0, -math.inf]
    assert lts(u, 0.0).tolist() == [1.0, -math.inf, -math.inf]
    assert lts(u, torch.tensor([0.4, 0.8, 0.1])).tolist() == [1.0, 0.5, -math.inf]
    assert bool((lts(u, 0.4) >= -math.inf).all()), "theta = -inf accepts all"


def test_a_token_without_probability_is_kept_on_request_alone() -> None:
    """The paper's clamp lets a close embedding keep a token that top-k or top-p exclude."""
    p_drafted = torch.tensor([0.0, math.nan, 1e-30, 0.2])
    near, best = torch.zeros(4), torch.full((4,), 0.5)
    ends = torch.zeros(4, dtype=torch.bool)
    for theta in (0.3, -math.inf):
        found = loose_nodes(near, best, p_drafted, ends, BY, theta)
        assert found.tolist() == [False, False, True, True]
        assert loose_nodes(near, best, p_drafted, ends, BY, theta, keep_excluded=True).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    theta=st.sampled_from([-3.0, 0.0, 0.3, 0.9, 1.0]),
    floor=st.sampled_from([1e-4, 0.02, 0.3, 1.0]),
)
def test_a_token_is_kept_by_either_side_and_never_below_the_floor(
    seed: int, theta: float, floor: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    distances = 20 * torch.rand(40, generator=generator)
    p_drafted = 10 ** (-6 * torch.rand(40, generator=generator))
    p_drafted[:3] = torch.tensor([0.0, math.nan, floor])
    best, ends = p_drafted.nan_to_num().clamp_min(0.3), torch.zeros(40, dtype=torch.bool)
    given = (distances, best, p_drafted)
    published = loose_nodes(*given, ends, BY, theta, keep_excluded=True)
    embedding, logit = sides(*given, BY, theta)
    assert torch.equal(published, embedding | logit)
    for node in range(3, 40):
        own, first = float(p_drafted[node]), float(best[node])
        u = (BY.c_s * float(distances[node]), BY.alpha_kappa * math.log(first / own) ** 2)
        told = (bool(embedding[node]), bool(logit[node]))
        assert all(said == (1 - x / BY.tau >= theta) or 1 - x / BY.tau == pytest.approx(theta, abs=1e-4)
                   for said, x in zip(told, u, strict=True))  # fmt: skip
    floored = loose_nodes(*given, ends, BY, theta, floor=floor)
    assert torch.equal(floored, published & (p_drafted >= floor))
    assert not floored[:2].any() and bool(floored[2]) == bool(published[2])


def test_entropy_is_normalised() -> None:
    p = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert normalised_entropy(p).tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert normalised_entropy(torch.ones(2, 1)).tolist() == [0, 0]
