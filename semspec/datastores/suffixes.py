"""A suffix array over tokens of any vocabulary, sorted to a limited depth.

Prefix doubling (Manber and Myers 1993): suffixes sorted by h tokens are sorted by 2h tokens once each is
paired with the rank of the suffix h tokens later. Only groups that are still tied are sorted again (Larsson
and Sadakane 2007), and none deeper than ``depth``, since no match is longer. Remaining ties are ordered by
place, so the same text always gives the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**31 - 2  # tokens: places are int32
BYTES = 93  # measured peak memory per token while sorting


def sorted_suffixes(text: NDArray[np.uint32], depth: int) -> NDArray[np.int32]:
    """Return the places of ``text`` sorted by the ``depth`` tokens that start there."""
    count = len(text)
    assert count <= LARGEST and depth >= 1
    if not count:
        return np.zeros(0, np.int32)
    # 0 is the end of the text; the end mark of a document, 2^32 - 1, sorts after all tokens
    own = np.minimum(text, np.uint32(2**31)) + np.uint32(1)
    keys = own.astype(np.uint64)
    keys <<= np.uint64(32)
    if depth > 1:
        keys[:-1] |= own[1:]
    del own
    order = np.argsort(keys).astype(np.int32)
    rank = np.empty(count, np.int32)
    tied = _refine(order, rank, np.arange(count), keys[order])
    del keys
    sorted_by = 2
    while sorted_by < depth and len(tied):
        places = order[tied]
        behind = places.astype(np.int64) + sorted_by
        pairs = rank[places].astype(np.int64) << 32
        inside = behind < count
        # the end of the text sorts before everything: 0, and ranks count from 1
        pairs[inside] |= rank[behind[inside]].astype(np.int64) + 1
        del behind, inside
        again = np.argsort(pairs)
        order[tied] = places[again]
        tied = _refine(order, rank, tied, pairs[again])
        sorted_by *= 2
    if len(tied):
        last = (rank[order[tied]].astype(np.int64) << 32) | order[tied]
        last.sort()
        order[tied] = (last & 0xFFFFFFFF).astype(np.int32)
    return order


def _refine(
    order: NDArray[np.int32],
    rank: NDArray[np.int32],
    tied: NDArray[np.int64],
    keys: NDArray[np.int64] | NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Rank the suffixes at the tied places by the first of their group; return the places still tied."""
    first = np.ones(len(tied) + 1, bool)  # begins a group; one more entry than places
    np.not_equal(keys[1:], keys[:-1], out=first[1:-1])
    starts = np.where(first[:-1], tied, 0)
    rank[order[tied]] = np.maximum.accumulate(starts)
    return tied[~(first[:-1] & first[1:])]
