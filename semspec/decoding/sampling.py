"""Turn logits into sampling distributions, and draw from them. Pure functions."""

from __future__ import annotations

import random
from typing import Any

from numpy.typing import NDArray

from semspec.deferred import Tensor, torch
from semspec.errors import UserError
from semspec.types import Sampling


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return rows of ``logits`` after temperature, top-k, top-p and min-p, in that order; float32, sum 1.

    Temperature 0 gives the one-hot row of the first largest logit. Min-p keeps the tokens at least ``min_p``
    times as probable as the likeliest one; renormalising before makes no difference to it, but it has to come after
    top-p, which depends on the remaining mass. Transformers and SGLang's sampler use this order; vLLM applies
    min-p before top-k and top-p.
    """
    logits = logits.float()
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probs = logits.softmax(-1)
    if sampling.top_p < 1.0:
        ordered, order = probs.sort(stable=True, dim=-1, descending=True)
        # a token stays if the mass strictly before it is below top_p
        stays = ordered.cumsum(-1) - ordered < sampling.top_p
        stays[..., 0] = True  # also for a top_p so small that it is 0 in float32
        kept = torch.where(stays, ordered, 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, order, kept)
        probs = probs / probs.sum(-1, keepdim=True)
    if sampling.min_p > 0.0:
        least = sampling.min_p * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill(probs < least, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def log_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log-probabilities at a temperature above 0; float32."""
    logits = logits.float()
    return (logits if temperature == 1.0 else logits / temperature).log_softmax(-1)


def at_temperature(logprobs: Tensor, likeliest: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities [n] at T <= 1 from raw ones and those of each row's k likeliest tokens [n, k].

    The other tokens of a row, with total mass m, count with their upper bound: none is likelier than the k-th, so their
    p^(1/T) sum to at most m p_k^(1/T - 1). So no result is too high, and none is too low by more than
    log(1 + that bound / the sum over the k likeliest tokens).
    """
    raw, top, power = logprobs.double(), likeliest.double(), 1 / temperature
    others = (1 - top.exp().sum(-1, keepdim=True)).clamp_min(0.0)
    others = others.log() + (power - 1) * top.amin(-1, keepdim=True)
    total = torch.cat([power * top, others], -1).logsumexp(-1)
    return (power * raw - total).clamp_max(0.0).float()


def draw(probs: Tensor, uniform: float) -> int:
    """Return the token at quantile ``uniform`` in [0, 1) of one row (inverse transform sampling).

    Raise UserError if the row has no mass.
    """
    # scale by the row's own sum: float32 rows of 150k entries do not sum to exactly 1
    if probs.is_cpu:  # numpy's calls are cheaper, but torch sums long rows faster
        return draw_summed(probs.numpy(), probs.cumsum(-1).numpy(), uniform)
    cumulative = probs.cumsum(-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    if index < len(probs) and probs[index] > 0:
        return index
    _check_mass(float(cumulative[-1]))
    return int(probs.nonzero()[-1])


def draw_summed(row: NDArray[Any], summed: NDArray[Any], uniform: float) -> int:
    """Draw as ``draw`` does, from a row in main memory with known cumulative sums."""
    index = int(summed.searchsorted(uniform * summed[-1], side="right"))
    if index < len(row) and row[index] > 0:
        return index
    _check_mass(float(summed[-1]))
    return int(row.nonzero()[0][-1])  # only reached by rounding at the very end of the row


def _check_mass(total: float) -> None:
    if not total > 0:
        raise UserError(
            f"a model's probabilities sum to {total}, because its numbers overflow or its"
            " weights are damaged: try engine.dtype=fp32, or load the model again"
        )


def draw_next(row: Tensor, sampling: Sampling, rng: random.Random) -> int:
    """Draw a token from a processed row; a greedy row is one-hot and takes no random number."""
    return int(row.argmax()) if sampling.greedy else draw(row, rng.random())


def chances(count: int, sampling: Sampling, rng: random.Random) -> list[float]:
    """Return random numbers for accepting tokens; for greedy sampling any number works, since rows are one-hot."""
    return [0.5] * count if sampling.greedy else [rng.random() for _ in range(count)]


def uniforms(count: int, sampling: Sampling, rng: random.Random, device: torch.device) -> Tensor:
    """Return ``chances`` as a tensor."""
    return torch.tensor(chances(count, sampling, rng), device=device)
