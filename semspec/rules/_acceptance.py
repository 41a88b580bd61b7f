"""The arithmetic of the token rules: pure, vectorised tensor functions.

The same functions run in the loop and inside a serving engine's verification.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def accepted_length(accepted: Tensor) -> int:
    """How many leading entries of a boolean row are true."""
    flags = accepted.tolist()  # one copy from the device, and no further operation on it
    return flags.index(False) if False in flags else len(flags)


def lossless_chain(
    p: Tensor, tokens: Tensor, q: Tensor | None, uniforms: Tensor
) -> tuple[int, Tensor]:
    """Speculative sampling on a chain (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

    ``p`` [n + 1, V] are the target's rows, ``tokens`` [n] the draft, ``q`` [n, V] the rows that it
    was sampled from, or None for a draft that was not sampled (a point mass at each token).
    Returns how many tokens are kept, and the distribution to draw the token after them from.
    """
    count = len(tokens)
    rows = _rows(count, p.device)
    px = p[rows, tokens]
    if q is None:
        accepted = uniforms < px  # a point mass has q(x) = 1
    else:
        # min(1, p(x)/q(x)) > u, without the division: q(x) > 0 because x was drawn from q
        accepted = uniforms * q[rows, tokens] < px
    keep = accepted_length(accepted)
    row = p[keep]
    if keep == count:
        return keep, row
    return keep, residual(row, int(tokens[keep]), None if q is None else q[keep])


@lru_cache(maxsize=1024)
def _rows(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def residual(p: Tensor, token: int, q: Tensor | None) -> Tensor:
    """What to draw from after ``token`` was rejected: normalise(max(p - q, 0)).

    For a point mass that is p without the token.
    """
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p - q).clamp_min(0.0)
    total = rest.sum()
    # a rejection with nothing left can only be rounding: then p and q were equal
    return rest / total if total > 0 else p


def matching_prefix(best: Tensor, tokens: Tensor) -> int:
    """How many tokens are the target's own greedy choice; ``best`` [n + 1]."""
    return accepted_length(best[: len(tokens)] == tokens)
