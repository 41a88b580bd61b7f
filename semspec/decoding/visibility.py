"""Which tokens of a pass see each other, as a mask that is added to the attention scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semspec.deferred import Tensor, torch


def folded_mask(unseen: NDArray[np.bool_], before: int, repeats: int = 1) -> Tensor:
    """Return a mask [tokens * repeats, before + columns]: 0 where a token sees a row of the cache, else -inf.

    ``unseen`` [tokens, columns] marks which of the last rows a token must not see; all tokens see the ``before`` rows.
    ``repeats``: repeat each token's row, for heads that share keys. The mask is float because attention would convert a
    boolean one again in every layer.
    """
    tokens, columns = unseen.shape
    mask = np.zeros((tokens, repeats, before + columns), np.float32)
    np.copyto(mask[:, :, before:], -np.inf, where=unseen[:, None])
    return torch.from_numpy(mask.reshape(tokens * repeats, -1))
