"""What the tokens of a pass see of each other, as a mask that is added to attention's scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semspec.deferred import Tensor, torch


def folded_mask(unseen: NDArray[np.bool_], before: int, repeats: int = 1) -> Tensor:
    """Return [tokens * repeats, before + columns]: 0 for each row of the cache that a token sees, else -inf.

    ``unseen`` [tokens, columns] marks what a token must not see of the last rows; all see the rows before them. ``repeats``: each
    token's row so often, one after the other, as heads that share keys stand beside each other. Attention would convert a mask
    of true and false anew in every layer.
    """
    tokens, columns = unseen.shape
    mask = np.zeros((tokens, repeats, before + columns), np.float32)
    np.copyto(mask[:, :, before:], -np.inf, where=unseen[:, None])
    return torch.from_numpy(mask.reshape(tokens * repeats, -1))
