"""The EAGLE-3 head's layer over a few pairs in float32 on a CPU, with as few operations as possible.

What ``engines._lean.step`` does for models: the cost of so small a layer is that of calling torch. The norm's factor goes into
the product, one complex product turns queries and keys, keys and values are one row of the cache, and of a small vocabulary
the tokens' half of the first product is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.heads.eagle3 import Eagle3

MOST = 1 << 24  # numbers: the largest table of what tokens give
FIRST_POSITIONS = 256


class HeadStep:
    """The weights of a head, laid out for ``pairs``; shared by all sessions."""

    def __init__(self, head: Eagle3) -> None:
        self.head, shape = head, head.shape
        self.group = shape.heads // shape.kv_heads
        self.row = 2 * shape.kv_heads * shape.head_dim  # of the cache: keys, then values
        of_tokens, of_features = head.qkv[:, : shape.width], head.qkv[:, shape.width :]
        self._of_tokens, self._of_features = of_tokens.t(), of_features.contiguous()
        self._qkv, self._out = of_features.t().contiguous(), head.out.t()
        self._gate_up, self._down = head.gate_up.t().contiguous(), head.down.t()
        self._last = head.head.t()
        self._root = math.sqrt(shape.width)
        self._least = torch.tensor(math.sqrt(shape.eps * shape.width))
        self._zero = torch.zeros(1)
        self._table: Tensor | None = None
        if len(head.embed) * len(head.qkv) <= MOST:
            self._table = self._given(head.embed)

    @classmethod
    def of(cls, head: Eagle3) -> HeadStep | None:
        """Return a head's own, made when it is first asked for; None where the head is not in float32 on a CPU."""
        if head.embed.device.type != "cpu" or head.embed.dtype != torch.float32:
            return None
        if head.step is None:
            head.step = cls(head)
        step: HeadStep = head.step
        return step

    def _given(self, rows: Tensor) -> Tensor:
        """Return what tokens of these rows of the embedding add to queries, keys and values."""
        given: Tensor = rows @ self._of_tokens
        return given if self.head.qkv_bias is None else given.add_(self.head.qkv_bias)

    def pairs(
        self,
        tokens: Sequence[int],
        hidden: Tensor,
        turns: Tensor,
        cache: StepCache,
        at: int,
        mask: Tensor | None,
    ) -> Tensor:
        """Return a [n, width] of pairs whose rows of the cache begin at ``at``.

        ``turns`` [n or 1, 1, head_dim / 2]. ``mask`` [n * group, at + n] has 0 for each row that a pair sees, else -inf; heads that
        share keys are rows beside each other. None: each pair sees all before it, if at the beginning, or all there are.
        """
        head, shape, count = self.head, self.head.shape, len(tokens)
        d, kv, group, end = shape.head_dim, shape.kv_heads, self.group, at + count
        queries = shape.heads * d
        ids = torch.tensor(tokens)
        feature = hidden / self._length(hidden)
        rows = F.embedding(ids, self._table if self._table is not None else head.embed)
        qkv = torch.addmm(
            rows if self._table is not None else self._given(rows),
            feature,
            self._qkv,
            alpha=self._root,
        )
        qkv.view(count, -1, d)[:, : shape.heads + kv].view(torch.complex64).mul_(turns)
        keys, values = cache.written(at, qkv[:, queries:])
        q = qkv.as_strided((kv, count, group, d), (group * d, qkv.shape[1], d, 1))
        k, v = keys.narrow(2, 0, end), values.narrow(2, 0, end)
        if at or count == 1:
            folded = q.reshape(1, kv, count * group, d)
            seen = F.scaled_dot_product_attention(folded, k, v, mask)
            seen = seen.view(kv, count, group, d).transpose(0, 1)
        else:  # a whole prompt needs no mask of its length squared
            many = q.transpose(1, 2).reshape(1, shape.heads, count, d)
            seen = F.scaled_dot_product_attention(many, k, v, is_causal=True, enable_gqa=group > 1)
            seen = seen.transpose(1, 2)
        residual = hidden
        if head.residual_norm is not None:
            residual = feature * (self._root * head.residual_norm)
        x = torch.addmm(residual, seen.reshape(count, queries), self._out)
        if head.out_bias is not None:
            x += head.out_bias
        return self._mlp(x)

    def pair(self, token: int, hidden: Tensor, turns: Tensor, cache: StepCache, at: int) -> Tensor:
        """Return a [1, width] of one pair that sees all before it, as ``pairs`` does: by vectors, which takes fewer operations.

        ``hidden`` [1, width]; ``turns`` [1, head_dim / 2].
        """
        head, shape = self.head, self.head.shape
        d, kv, group = shape.head_dim, shape.kv_heads, self.group
        queries, x = shape.heads * d, hidden[0]
        scale = self._scale(x)
        row = self._table[token] if self._table is not None else self._given(head.embed[token])
        qkv = torch.addmv(row, self._of_features, x, alpha=scale)
        qkv[: queries + kv * d].view(-1, d).view(torch.complex64).mul_(turns)
        keys, values = cache.written(at, qkv[None, queries:])
        k, v = keys.narrow(2, 0, at + 1), values.narrow(2, 0, at + 1)
        seen = F.scaled_dot_product_attention(qkv[:queries].view(1, kv, group, d), k, v)
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
        return (x if down is None else x.add_(down))[None]

    def _scale(self, x: Tensor) -> float:
        """Return 1 / rms(x) of a vector: the factor of a product with what is normed."""
        return 1 / math.sqrt(x.dot(x).item() / len(x) + self.head.shape.eps)

    def _length(self, x: Tensor) -> Tensor:
        """Return sqrt(width) rms(x) = hypot(|x|, sqrt(eps width)) of each row."""
        return torch.hypot(torch.linalg.vector_norm(x, 2, 1, True), self._least)

    def _mlp(self, x: Tensor) -> Tensor:
        bias, down = self.head.gate_up_bias, self.head.down_bias
        h, there = x / self._length(x), bias is not None
        both = torch.addmm(
            bias if bias is not None else self._zero, h, self._gate_up, beta=there, alpha=self._root
        )
        gate, up = both.chunk(2, 1)
        x = torch.addmm(x, F.silu(gate).mul_(up), self._down)
        return x if down is None else x.add_(down)

    def logits(self, a: Tensor) -> Tensor:
        """Return raw logits over the draft vocabulary for the tokens after the pairs."""
        if len(a) == 1:
            scale = self._scale(a[0])
            return torch.addmv(self._zero, self.head.head, a[0], beta=0, alpha=scale)[None]
        h = a / self._length(a)
        return torch.addmm(self._zero, h, self._last, beta=0, alpha=self._root)


class StepCache:
    """Keys and values of one context's pairs, position by position."""

    def __init__(self, step: HeadStep) -> None:
        shape = step.head.shape
        self._shape = (2, shape.kv_heads, shape.head_dim)
        self.rows = torch.empty(0, step.row)
        self._keys = self._values = self.rows

    def written(self, at: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values behind one another from ``at`` on, and return all: [1, kv_heads, positions, d] each."""
        end = at + len(rows)
        if end > len(self.rows):
            grown = self.rows.new_zeros(
                max(FIRST_POSITIONS, 1 << (end - 1).bit_length()), self.rows.shape[1]
            )
            grown[: len(self.rows)] = self.rows
            self.rows = grown
            self._keys, self._values = grown.view(1, -1, *self._shape).permute(2, 0, 3, 1, 4)
        self.rows[at:end] = rows
        return self._keys, self._values
