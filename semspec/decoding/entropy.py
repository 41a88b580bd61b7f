"""Entropies of the rows that tokens are drawn from."""

from __future__ import annotations

import math
from typing import Any

from semspec.types import Read, What


def entropies(read: Read, values: Any) -> list[float]:
    """Return the entropy of every row, before temperature; its scale depends on what was read.

    TOP_K: in nats, over the k likeliest tokens as if there were no others (GlimpRouter's public code,
    k = 20). LOGITS: over all tokens and divided by ln V, so that 1 is the largest (R-Stitch).
    """
    if read.what is What.TOP_K:
        _, logprobs = values
        rows = logprobs.double().log_softmax(-1)
        scale = 1.0
    else:
        assert read.what is What.LOGITS, read
        rows = values.double().log_softmax(-1)
        scale = math.log(rows.shape[-1])
    # p ln p is 0 where p is 0
    terms = rows.exp() * rows.clamp_min(-1e4)
    return [float(x) for x in (-terms.sum(-1) / scale).tolist()]
