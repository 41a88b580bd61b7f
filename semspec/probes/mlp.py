"""The probe's network: a three-layer perceptron (SemanticSpec 3.2.1) over standardised features.

    f(x) = sigmoid(W3 a(W2 a(W1 (x - mean) / std + b1) + b2) + b3)

For scoring the standardisation is folded into the first layer, (W1 / std) x + (b1 - W1 mean / std),
so that a step costs three small matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain, pairwise

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F

NAMES = tuple(f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias"))


def shapes(inputs: int, hidden: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every weight."""
    sizes = [inputs, *hidden, 1]
    pairs = ([(b, a), (b,)] for a, b in pairwise(sizes))
    return dict(zip(NAMES, chain.from_iterable(pairs), strict=True))


class Folded:
    """Weights ready for scoring: standardisation folded into the first layer, float32."""

    def __init__(
        self, weights: dict[str, Tensor], mean: Tensor, std: Tensor, activation: str
    ) -> None:
        w1, b1, self.w2, self.b2, self.w3, self.b3 = (weights[name].float() for name in NAMES)
        scaled = w1 / std
        self.w1, self.b1 = scaled.contiguous(), b1 - scaled @ mean
        self.gelu = activation == "gelu"

    @property
    def finite(self) -> bool:
        """Return True unless a weight overflowed when the standardisation was folded in."""
        weights = (self.w1, self.b1, self.w2, self.b2, self.w3, self.b3)
        return all(bool(weight.isfinite().all()) for weight in weights)

    def on(self, device: torch.device) -> Folded:
        """Return the same weights on another device."""
        there = copy(self)
        for name in ("w1", "b1", "w2", "b2", "w3", "b3"):
            setattr(there, name, getattr(self, name).to(device))
        return there

    def __call__(self, x: Tensor) -> Tensor:
        """Return probabilities [rows] of features [rows, inputs], float32."""
        return self.finish(F.linear(x, self.w1, self.b1))

    def begin(self, x: Tensor) -> Tensor:
        """Compute the first layer [rows, hidden] over the first columns of the features."""
        return F.linear(x, self.w1[:, : x.shape[1]], self.b1)

    def rest(self, hidden: Tensor, x: Tensor) -> Tensor:
        """Complete the first layer, given the result of ``begin`` and the last columns."""
        return hidden + F.linear(x, self.w1[:, -x.shape[1] :])

    def finish(self, hidden: Tensor) -> Tensor:
        """Return probabilities from the complete first layer, which is overwritten."""
        x = F.gelu(hidden) if self.gelu else hidden.relu_()
        x = F.linear(x, self.w2, self.b2)
        x = F.gelu(x) if self.gelu else x.relu_()
        return F.linear(x, self.w3, self.b3).sigmoid_().view(-1)
