"""From logits to what is drawn."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.sampling import draw, probabilities
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
