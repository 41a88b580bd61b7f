"""Run the EAGLE-3 head's layer over a few pairs in float32 on a CPU, with as few operations as possible.

This is what ``engines._lean.step`` does for models: the cost of so small a layer is that of calling torch. The norm's
factor goes into the product, one complex product rotates queries and keys, keys and values are one row of the cache, and
for a small vocabulary the tokens' half of the first product comes from a table. Only the last of the context's new pairs
has an output that is read; for the others, only keys and values are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.visibility import folded_mask
from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.heads.eagle3 import Eagle3
from semspec.heads.eagle3_pairs import Pairs, PairsBase
from semspec.models.processor import by_inputs

MOST = 1 << 24  # numbers in the largest table of the tokens' half
FIRST_POSITIONS = 256
Rows: TypeAlias = NDArray[np.float32]
Turns: TypeAlias = NDArray[np.complex64]


def pairs_of(head: Eagle3) -> PairsBase:
    """Return the pairs of a new context, in the implementation that is cheapest on the head's device."""
    step = HeadStep.of(head)
    return Pairs(head) if step is None else StepPairs(step)


class HeadStep:
    """The weights of a head, laid out for few pairs; shared by all sessions."""

    def __init__(self, head: Eagle3) -> None:
        self.head, shape = head, head.shape
        self.group = shape.heads // shape.kv_heads
        self.queries = shape.heads * shape.head_dim
        of_tokens, of_features = head.qkv[:, : shape.width], by_inputs(head.qkv[:, shape.width :])
        self._of_tokens, self._of_features = of_tokens.t(), of_features
        # transposed views of the matrices used by ``pair``: copies would displace others from the processor's cache
        self._qkv, self._out, self._last = of_features.t(), head.out.t(), head.head.t()
        self._gate_up, self._down = head.gate_up.t(), head.down.t()
        self._root = math.sqrt(shape.width)
        self._least = torch.tensor(math.sqrt(shape.eps * shape.width))
        self._zero = torch.zeros(1)
        self._table: Rows | None = None
        if len(head.embed) * len(head.qkv) <= MOST:
            self._table = self._computed(head.embed)

    @classmethod
    def of(cls, head: Eagle3) -> HeadStep | None:
        """Return the head's own step, made on first use; None if the head is not in float32 on a CPU."""
        if head.embed.device.type != "cpu" or head.embed.dtype != torch.float32:
            return None
        if head.step is None:
            head.step = cls(head)
        step: HeadStep = head.step
        return step

    def _computed(self, rows: Tensor) -> Rows:
        """Return what tokens with these embedding rows add to queries, keys and values."""
        given = rows @ self._of_tokens
        if self.head.qkv_bias is not None:
            given += self.head.qkv_bias
        found: Rows = given.numpy()
        return found

    def _given(self, tokens: Sequence[int]) -> Rows:
        if self._table is not None:
            return self._table[tokens]
        return self._computed(self.head.embed[torch.tensor(tokens)])

    def fill(self, tokens: Sequence[int], hidden: Tensor, turns: Turns) -> Rows:
        """Return keys and values [n, row of the cache] of pairs; ``turns`` [n, 1, head_dim / 2]."""
        shape, given = self.head.shape, self._given(tokens)[:, self.queries :]
        matrix, feature = self._qkv[:, self.queries :], hidden / self._length(hidden)
        rows: Rows = torch.addmm(torch.from_numpy(given), feature, matrix, alpha=self._root).numpy()
        keys = rows.reshape(len(rows), -1, shape.head_dim)[:, : shape.kv_heads]
        turned = keys.view(np.complex64)
        turned *= turns
        return rows

    def level(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        turns: Turns,
        cache: StepCache,
        at: int,
        mask: Tensor,
    ) -> Tensor:
        """Return a [n, width] of pairs of one level, whose rows of the cache begin at ``at``.

        ``turns`` [1, head_dim / 2]. ``mask`` [n * group, at + n] has 0 for each row that a pair sees, else -inf; heads that
        share keys are adjacent rows.
        """
        head, shape, count = self.head, self.head.shape, len(tokens)
        d, kv, group = shape.head_dim, shape.kv_heads, self.group
        feature, given = hidden / self._length(hidden), torch.from_numpy(self._given(tokens))
        rows: Rows = torch.addmm(given, feature, self._qkv, alpha=self._root).numpy()
        turned = rows.reshape(count, -1, d)[:, : shape.heads + kv].view(np.complex64)
        turned *= turns
        keys, values = cache.written(at, rows[:, self.queries :])
        q = rows[:, : self.queries].reshape(count, kv, group, d).swapaxes(0, 1)
        folded = torch.from_numpy(q.reshape(1, kv, count * group, d))
        seen = F.scaled_dot_product_attention(folded, keys, values, mask)
        seen = seen.view(kv, count, group, d).transpose(0, 1).reshape(count, self.queries)
        residual = hidden
        if head.residual_norm is not None:
            residual = feature * (self._root * head.residual_norm)
        x = torch.addmm(residual, seen, self._out)
        if head.out_bias is not None:
            x += head.out_bias
        bias, down = head.gate_up_bias, head.down_bias
        both = torch.addmm(
            bias if bias is not None else self._zero,
            x / self._length(x),
            self._gate_up,
            beta=bias is not None,
            alpha=self._root,
        )
        gate, up = both.chunk(2, 1)
        x = torch.addmm(x, F.silu(gate).mul_(up), self._down)
        return x if down is None else x.add_(down)

    def pair(self, token: int, x: Tensor, turns: Turns, cache: StepCache, at: int) -> Tensor:
        """Return a [width] of one pair that sees all before it, like ``level`` but on vectors.

        ``turns`` [1, head_dim / 2].
        """
        head, shape = self.head, self.head.shape
        d, kv, group, queries = shape.head_dim, shape.kv_heads, self.group, self.queries
        scale = self._scale(x)
        row = self._given([token])[0] if self._table is None else self._table[token]
        found = torch.addmv(torch.from_numpy(row), self._of_features, x, alpha=scale)
        qkv = found.numpy()
        turned = qkv[: queries + kv * d].reshape(-1, d).view(np.complex64)
        turned *= turns
        keys, values = cache.written(at, qkv[None, queries:])
        q = found[:queries].view(1, kv, group, d)
        seen = F.scaled_dot_product_attention(q, keys, values)
        if head.residual_norm is not None:
            x = x * (scale * head.residual_norm)
        x = torch.addmv(x, head.out, seen.view(queries))
        if head.out_bias is not None:
            x += head.out_bias
        bias, down = head.gate_up_bias, head.down_bias
        both = torch.addmv(
            bias if bias is not None else self._zero,
            head.gate_up,
            x,
            beta=bias is not None,
            alpha=self._scale(x),
        )
        gate, up = both.chunk(2)
        x = torch.addmv(x, head.down, F.silu(gate).mul_(up))
        return x if down is None else x.add_(down)

    def logits(self, a: Tensor) -> Tensor:
        """Return raw logits [n, draft vocabulary] for the tokens after the pairs."""
        if len(a) == 1:
            alpha = self._scale(a[0])
            return torch.addmv(self._zero, self.head.head, a[0], beta=0, alpha=alpha)[None]
        h = a / self._length(a)
        return torch.addmm(self._zero, h, self._last, beta=0, alpha=self._root)

    def _scale(self, x: Tensor) -> float:
        """Return 1 / rms(x) of a vector: the factor that norms a product with it."""
        own = x.numpy()
        return 1 / math.sqrt(float(own.dot(own)) / len(own) + self.head.shape.eps)

    def _length(self, x: Tensor) -> Tensor:
        """Return sqrt(width) rms(x) = hypot(|x|, sqrt(eps width)) of each row."""
        return torch.hypot(torch.linalg.vector_norm(x, 2, 1, True), self._least)


class StepPairs(PairsBase):
    """Pairs by the fewer operations of ``HeadStep``, on a CPU."""

    def __init__(self, step: HeadStep) -> None:
        super().__init__()
        self.step, self.cache = step, StepCache(step)

    def follow(self, tokens: Sequence[int], features: Tensor) -> None:
        start, end = self.context, self.context + len(tokens)
        g = self.step.head.fused(features.to(self.step.head.fc))
        turns = self._turns(end)
        if len(tokens) > 1:
            rows = self.step.fill(tokens[:-1], g[:-1], turns[start : end - 1])
            self.cache.written(start, rows)
        last = self.step.pair(tokens[-1], g[-1], turns[end - 1], self.cache, end - 1)
        self.context, self.sees, self.outputs = end, [], last[None]

    def logits(self) -> Tensor:
        return self.step.logits(self.outputs[:1])

    def nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        before, depth = self.born(parents)
        at, count, position = self.context + before, len(tokens), self.context + depth - 1
        turns = self._turns(position + 1)[position]
        if count == 1 and depth > before:  # the node of a chain, which sees all
            new = self.step.pair(tokens[0], self.outputs[-1], turns, self.cache, at)[None]
        else:
            mask = folded_mask(self.unseen(before), self.context, self.step.group)
            hidden = torch.from_numpy(self.outputs.numpy()[[parent + 1 for parent in parents]])
            new = self.step.level(tokens, hidden, turns, self.cache, at, mask)
        self.outputs = torch.cat([self.outputs, new])
        return self.step.logits(new)

    def _turns(self, positions: int) -> Turns:
        found: Turns = self.step.head.turns(positions).numpy()
        return found


class StepCache:
    """Keys and values of one context's pairs, position by position."""

    def __init__(self, step: HeadStep) -> None:
        shape = step.head.shape
        self._shape = (2, shape.kv_heads, shape.head_dim)
        self.rows: Rows = np.empty((0, 2 * shape.kv_heads * shape.head_dim), np.float32)
        self._keys = self._values = torch.empty(0)

    def written(self, at: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Write rows of keys and values from ``at`` on; return all up to their end, [1, kv_heads, positions, d] each."""
        end = at + len(rows)
        if end > len(self.rows):
            room = max(FIRST_POSITIONS, 1 << (end - 1).bit_length())
            grown = np.zeros((room, self.rows.shape[1]), np.float32)
            grown[: len(self.rows)] = self.rows
            self.rows = grown
            views = torch.from_numpy(grown).view(1, -1, *self._shape).permute(2, 0, 3, 1, 4)
            self._keys, self._values = views
        self.rows[at:end] = rows
        return self._keys.narrow(2, 0, end), self._values.narrow(2, 0, end)
