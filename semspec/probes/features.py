"""Build a probe's view of a step: one row of numbers.

    [pooling 1: layer 0 ... layer L | pooling 2: ... | log-probability features]

The paper's features are the states of all layers, averaged over the step's tokens (SemanticSpec
3.2.1). An error sits in one or two tokens, and averaging dilutes it, so maximum, last token and the
step's log-probabilities, which come from the same pass, can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semspec.deferred import Tensor, torch
from semspec.errors import UserError

FLOOR = -20.0  # lower log-probabilities add no information, and would dominate every sum
UNLIKELY = (-1.0, -2.0, -4.0)  # tokens below each of these are counted
LOGPROB_NAMES = (
    *("lowest", "second lowest", "third lowest", "mean", "sum", "first", "last", "deviation"),
    *(f"below {t:g}" for t in UNLIKELY),
    *("tokens", "lowest at"),
)


@dataclass(frozen=True, slots=True)
class Features:
    """Which pooled states a probe reads, and whether it also reads log-probabilities."""

    pooling: tuple[str, ...] = ("mean",)
    layers: tuple[int, ...] = ()  # of 0 (embeddings) to L (after the final norm); (): all
    logprobs: bool = False

    def picked(self, layers: int) -> list[int]:
        """Return the chosen rows of [layers + 1] states."""
        return list(self.layers) if self.layers else list(range(layers + 1))

    def size(self, layers: int, width: int) -> int:
        states = len(self.pooling) * len(self.picked(layers)) * width
        return states + len(LOGPROB_NAMES) * self.logprobs

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def resolve(options: Any, layers: int) -> Features:
    """Return a configuration's features; raise UserError for layers that do not exist."""
    chosen = options.layers
    if chosen == "all":
        picked: tuple[int, ...] = ()
    elif chosen == "last":
        picked = (layers,)
    else:
        picked = tuple(i + layers + 1 if i < 0 else i for i in chosen)
        if not all(0 <= i <= layers for i in picked) or len(set(picked)) < len(picked):
            raise UserError(
                f"features.layers={list(chosen)}: the model has layers 0 (embeddings) to {layers}"
            )
    return Features(tuple(options.pooling), picked, options.logprobs)


def of_logprobs(logprobs: Sequence[float]) -> list[float]:
    """Summarise one step's log-probabilities (of the probed model, temperature 1) in a few numbers.

    Plain Python: for the twenty or so tokens of a step it is several times faster than tensors.
    """
    clipped = [FLOOR if x < FLOOR else x for x in logprobs]
    if not (count := len(clipped)):
        return [0.0] * len(LOGPROB_NAMES)
    ordered, total = sorted(clipped), sum(clipped)
    mean, lowest = total / count, ordered[0]
    squares = sum(x * x for x in clipped) / count - mean * mean
    return [
        *(lowest, ordered[min(1, count - 1)], ordered[min(2, count - 1)]),
        *(mean, total, clipped[0], clipped[-1]),
        squares**0.5 if squares > 0 else 0.0,
        *(float(bisect_left(ordered, t)) for t in UNLIKELY),
        float(count),
        clipped.index(lowest) / count,
    ]


def assemble(features: Features, states: Tensor, kept: Sequence[str], free: Tensor) -> Tensor:
    """Build rows [n, size] from stored states [n, pools, layers + 1, width] and ``of_logprobs``."""
    parts = []
    if features.pooling:
        chosen = states[:, [kept.index(p) for p in features.pooling]]
        if features.layers:
            chosen = chosen[:, :, list(features.layers)]
        parts.append(chosen.flatten(1))
    if features.logprobs:
        parts.append(free.to(torch.float16))
    return torch.cat(parts, 1)
