"""Sampling: from logits to drawn tokens."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.sampling import at_temperature, draw, log_probabilities, probabilities
from semspec.types import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])


def test_temperature_zero_is_the_first_largest() -> None:
    rows = probabilities(LOGITS, Sampling(0.0))
    assert rows.tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_temperature_divides_the_logits() -> None:
    expected = (LOGITS / 0.5).softmax(-1)
    assert torch.allclose(probabilities(LOGITS, Sampling(0.5)), expected)


def test_top_k_keeps_the_k_largest_and_ties() -> None:
    rows = probabilities(LOGITS, Sampling(1.0, top_k=2))
    assert (rows[0] > 0).tolist() == [True, True, False, False, True]  # the second place is shared


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[None]
    assert probabilities(row, Sampling(1.0, top_p=0.5))[0].tolist() == [1, 0, 0, 0]
    tiny = probabilities(row, Sampling(1.0, top_p=5e-324))  # 0 in float32
    assert tiny[0].tolist() == [1, 0, 0, 0]
    kept = probabilities(row, Sampling(1.0, top_p=0.7))[0]
    assert torch.allclose(kept, torch.tensor([0.625, 0.375, 0.0, 0.0]))


def test_min_p_keeps_what_is_probable_beside_the_likeliest() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[None]
    kept = probabilities(row, Sampling(1.0, min_p=0.3))[0]  # at least 0.15
    assert torch.allclose(kept, torch.tensor([10, 6, 3, 0]) / 19)
    assert probabilities(row, Sampling(1.0, min_p=1.0))[0].tolist() == [1, 0, 0, 0]
    assert probabilities(row, Sampling(0.0, min_p=0.3))[0].tolist() == [1, 0, 0, 0]
    # after the temperature, which brings 0.05 to 0.32 times the largest
    assert (probabilities(row, Sampling(2.0, min_p=0.3))[0] > 0).all()
    # after top-p: of what min-p leaves top-p would take the first two tokens only
    assert torch.allclose(probabilities(row, Sampling(1.0, top_p=0.83, min_p=0.3))[0], kept)


def slow_log_probabilities(row: list[float], temperature: float) -> list[float]:
    """One number after the other, in double precision."""
    scaled = [logit / temperature for logit in row]
    largest = max(scaled)
    total = math.fsum(math.exp(x - largest) for x in scaled)
    return [x - largest - math.log(total) for x in scaled]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.05, 3), scale=st.floats(0.1, 10))
def test_log_probabilities_are_of_logits_over_a_temperature(
    seed: int, temperature: float, scale: float
) -> None:
    logits = 3 * torch.randn(2, 40, generator=torch.Generator().manual_seed(seed))
    rows = log_probabilities(logits, temperature)
    for found, row in zip(rows.tolist(), logits.tolist(), strict=True):
        assert found == pytest.approx(slow_log_probabilities(row, temperature), rel=1e-5, abs=1e-4)
    assert torch.equal(log_probabilities(logits), logits.log_softmax(-1))
    # a sharper model that is sampled at a higher temperature says the same
    same = log_probabilities(scale * logits, scale * temperature)
    assert torch.allclose(same, rows, rtol=1e-4, atol=1e-3)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.05, 1.0),
    spread=st.floats(0.0, 8.0),
    kept=st.integers(1, 400),
)
def test_a_few_likeliest_tokens_tell_log_probabilities_at_a_lower_temperature(
    seed: int, temperature: float, spread: float, kept: int
) -> None:
    """Never too high, and too low by no more than what the others can have: of flat rows, sharp ones, few tokens, all."""
    logits = spread * torch.randn(400, generator=torch.Generator().manual_seed(seed)).double()
    raw = torch.tensor(slow_log_probabilities(logits.tolist(), 1.0), dtype=torch.float64)
    likeliest = raw.topk(kept).values
    found = at_temperature(raw, likeliest.expand(400, -1), temperature)
    missing = max(0.0, 1 - float(likeliest.exp().sum()))
    own = float((likeliest / temperature).exp().sum())
    bound = math.log1p(missing * math.exp((1 / temperature - 1) * float(likeliest[-1])) / own) if own else math.inf  # fmt: skip
    error = found - torch.tensor(slow_log_probabilities(logits.tolist(), temperature))
    slack = 1e-4 + 1e-6 * float(found.abs().max())
    assert float(error.max()) <= slack and -float(error.min()) <= bound + slack
    if kept == 400 or temperature == 1.0:
        assert float(error.abs().max()) <= slack


def test_thirty_two_tokens_are_enough_where_a_model_is_not_clueless() -> None:
    """Rows of 150,000 tokens, from a peak to half a mass over hundreds: the error at T = .6 in nats."""
    for peak, most in ((0.99, 1e-4), (0.5, 2e-3), (0.1, 0.01)):
        tail = torch.arange(1, 150_000).double() ** -1.5
        row = torch.cat([torch.tensor([peak]).double(), (1 - peak) * tail / tail.sum()]).log()
        found = at_temperature(row, row.topk(32).values.expand(len(row), -1), 0.6)
        true = torch.tensor(slow_log_probabilities(row.tolist(), 0.6))
        assert -most < float((found - true).min()) <= float((found - true).max()) < 1e-4


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(1, 12),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_rows_are_those_of_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Its processors, in the order in which ``generate`` applies them."""
    from transformers.generation import logits_process

    logits = 2 * torch.randn(3, 9, generator=torch.Generator().manual_seed(seed))
    scores, ids = logits, torch.zeros(3, 1, dtype=torch.long)
    for processor in (
        logits_process.TemperatureLogitsWarper(temperature),
        logits_process.TopKLogitsWarper(top_k),
        logits_process.TopPLogitsWarper(top_p),
        logits_process.MinPLogitsWarper(min_p),
    ):
        scores = processor(ids, scores)
    rows = probabilities(logits, Sampling(temperature, top_k, top_p, min_p))
    assert torch.allclose(rows, scores.softmax(-1), atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.05, 3),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_rows_are_distributions_and_draws_are_possible(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(3, 9, generator=generator)
    rows = probabilities(logits, Sampling(temperature, top_k, top_p, min_p))
    assert torch.allclose(rows.sum(-1), torch.ones(3), atol=1e-5)
    best = logits.argmax(-1)
    assert (rows.gather(-1, best[:, None]) > 0).all(), "the best token always stays"
    for uniform in (0.0, random.Random(seed).random(), 1 - 2**-53):
        for row in rows:
            assert row[draw(row, uniform)] > 0


def test_draws_follow_the_row() -> None:
    row = torch.tensor([0.1, 0.0, 0.6, 0.3])
    edges = {0.0: 0, 0.0999: 0, 0.1001: 2, 0.6999: 2, 0.7001: 3, 0.9999: 3}
    for uniform, token in edges.items():
        assert draw(row, uniform) == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_half_precision_logits_are_taken_in_float32(temperature: float) -> None:
    rows = probabilities(LOGITS.to(torch.bfloat16), Sampling(temperature))
    assert rows.dtype == torch.float32
