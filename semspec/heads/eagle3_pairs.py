"""The pairs of one context in an EAGLE-3 head's cache, and the draft after them.

A pair is the feature of a position and the token after it. The context's pairs stay in the cache; what a draft writes after
them is overwritten by the next draft, so that nothing is rolled back.

pairs = Pairs(head)                       # or ``eagle3_step.pairs_of``, which has a faster way on a CPU
pairs.follow(tokens, features)            # the context's new pairs
logits = pairs.logits()                   # [1, draft vocabulary]: of what follows the context
logits = pairs.nodes(tokens, parents)     # [n, draft vocabulary]: of what follows the new nodes of one level
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.heads.eagle3 import Attend, Eagle3


class PairsBase:
    """The pairs of a context, and the nodes of the draft after them."""

    def __init__(self) -> None:
        self.context = 0  # pairs of the context, in the cache
        self.sees: list[list[int]] = []  # of each node drafted, its ancestors and itself
        # a [1 + nodes, width]: of the last pair, and of what was drafted
        self.outputs = torch.empty(0)

    def follow(self, tokens: Sequence[int], features: Tensor) -> None:
        """Add the context's new pairs to the cache: their tokens, and features [n, 3 * target width]."""
        raise NotImplementedError

    def logits(self) -> Tensor:
        """Return raw logits [1, draft vocabulary] of the token after the context."""
        raise NotImplementedError

    def nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return raw logits [n, draft vocabulary] of the tokens after new nodes, all of one level.

        ``parents`` are nodes of an earlier level, numbered in the order in which they were given; -1 is the context. Their
        outputs stand in for features.
        """
        raise NotImplementedError

    def born(self, parents: Sequence[int]) -> tuple[int, int]:
        """Record new nodes; return how many there were before, and the depth of the new ones (1: after the context)."""
        before = len(self.sees)
        for node, parent in enumerate(parents, start=before):
            self.sees.append([*(self.sees[parent] if parent >= 0 else ()), node])
        return before, len(self.sees[-1])

    def unseen(self, before: int) -> NDArray[np.bool_]:
        """Return [new, all nodes]: which nodes the ones after the first ``before``, all of one level, do not see."""
        new = self.sees[before:]
        found = np.ones((len(new), len(self.sees)), np.bool_)
        found[np.arange(len(new))[:, None], new] = False
        return found


class Pairs(PairsBase):
    """Pairs by the head's own operations, on any device."""

    def __init__(self, head: Eagle3) -> None:
        super().__init__()
        self.head, self.cache = head, PairCache(head)

    def follow(self, tokens: Sequence[int], features: Tensor) -> None:
        start, count = self.context, len(tokens)
        g = self.head.fused(features.to(self.head.fc))
        mask = None
        if start and count > 1:  # each pair sees those before it
            whole = torch.ones(count, start + count, dtype=torch.bool, device=g.device)
            mask = whole.tril(start)
        turns = self.head.turns(start + count)[start : start + count]
        self.context, self.sees = start + count, []
        self.outputs = self._read(tokens, g, turns, start, mask)[-1:]

    def logits(self) -> Tensor:
        return self.head.logits(self.outputs[:1])

    def nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        before, depth = self.born(parents)
        at, count, mask = self.context + before, len(tokens), None
        if count > 1 or depth <= before:  # else the node of a chain, which sees all
            unseen = np.pad(self.unseen(before), ((0, 0), (self.context, 0)))
            mask = torch.from_numpy(~unseen).to(self.outputs.device)
        position = self.context + depth - 1
        turns = self.head.turns(position + 1)[position : position + 1]
        hidden = self.outputs[[parent + 1 for parent in parents]]
        new = self._read(tokens, hidden, turns, at, mask)
        self.outputs = torch.cat([self.outputs, new])
        return self.head.logits(new)

    def _read(
        self, tokens: Sequence[int], hidden: Tensor, turns: Tensor, at: int, mask: Tensor | None
    ) -> Tensor:
        """Return a [n, width] of n pairs, written into the cache at ``at``."""
        ids = torch.tensor(tokens, device=hidden.device)
        return self.head.layer(ids, hidden, turns, self.cache.attend(at, mask))


class PairCache:
    """Keys and values of one context's pairs."""

    def __init__(self, head: Eagle3) -> None:
        self.keys = self.values = torch.empty(head.shape.kv_heads, 0, head.shape.head_dim)

    def attend(self, at: int, mask: Tensor | None) -> Attend:
        """Return the attention of new pairs, which it writes at ``at``; without ``mask``, to all before them."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            end = at + k.shape[-2]
            self._reserve(end, k)
            self.keys[:, at:end], self.values[:, at:end] = k, v
            keys, values = self.keys[None, :, :end], self.values[None, :, :end]
            if at and mask is None:  # one pair: the heads that share keys become its rows
                rows = q.reshape(1, len(keys[0]), -1, q.shape[-1])
                return F.scaled_dot_product_attention(rows, keys, values).reshape(q.shape)
            # is_causal saves a whole prompt a mask of its length squared
            return F.scaled_dot_product_attention(
                q[None], keys, values, mask if at else None, is_causal=not at, enable_gqa=True
            )[0]

        return attend

    def _reserve(self, positions: int, like: Tensor) -> None:
        if positions > self.keys.shape[1]:
            room = max(256, 1 << (positions - 1).bit_length())
            shape = (len(like), room, like.shape[-1])
            for name in ("keys", "values"):
                grown, old = like.new_zeros(shape), getattr(self, name)
                grown[:, : old.shape[1]] = old
                setattr(self, name, grown)
