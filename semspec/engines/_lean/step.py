"""The pass over one or a few tokens of one session on a CPU, with as few torch calls as possible.

A pass of a small model costs what its calls to torch cost, some 20 per layer, so each trick here removes
a call: norm weights are folded into the matrices, the norm's factor becomes the product's ``alpha``,
additions are part of products, one complex product applies the rotary embedding to queries and keys, and
the new cache rows are written as one slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model, Tap
from semspec.engines._lean.packed import Product, padded

FEW = 64  # the most tokens; with more, the calls no longer dominate the cost


class Step:
    """The short passes, for float32 on a CPU only: they need folded norms and cheap reads of single numbers.

    Both passes return states [tokens, width] after the final norm, and cache keys and values.
    """

    def __init__(self, model: Model) -> None:
        spec = model.spec
        self.model, self.spec = model, spec
        turning = spec.heads + spec.kv_heads
        shape = (FEW, turning + spec.kv_heads, spec.head_dim // 2)
        # values get no rotary embedding: their factor stays 1
        factors = torch.ones(shape, dtype=torch.complex64)
        self._turning, self._factors = factors[:, :turning], factors.view(FEW, -1)
        self._turning_one, self._factors_one = self._turning[0], self._factors[0]
        self.group = spec.heads // spec.kv_heads  # heads that share keys
        self._least = torch.tensor(math.sqrt(spec.eps * spec.width))
        self._norm = math.sqrt(spec.width) * model.weights.norm
        self._vectors, self._matrices = [], []
        for b in model.weights.blocks:
            bqkv, bgu = _summand(b.qkv_bias), _summand(b.gate_up_bias)
            biases = (*bqkv, b.out_bias, *bgu, b.down_bias, b.qk_norm)
            self._vectors.append((b.qkv, b.out, b.gate_up, b.down, *biases))
            turned = (b.qkv.t(), b.out.t(), b.gate_up.t(), b.down.t())
            self._matrices.append((*turned, *biases))

    def one(self, token: int, position: int, slot: int, cache: Cache, tap: Tap | None) -> Tensor:
        """Feed one token, which sees all tokens before it; ``tap`` gets vectors."""
        spec, model = self.spec, self.model
        width, eps, d, inner = spec.width, spec.eps, spec.head_dim, spec.inner
        queries = spec.heads * d
        shape = (1, spec.kv_heads, spec.heads // spec.kv_heads, d)  # heads sharing keys as rows
        end = position + 1
        attention = F.scaled_dot_product_attention
        addmv, silu, sqrt = torch.addmv, torch._C._nn.silu, math.sqrt
        complex64 = torch.complex64
        self._turning_one.copy_(model.turns(end)[position])
        turns = self._factors_one
        x = model.weights.embed[token]
        layers = zip(self._vectors, cache.views(slot), strict=True)
        for i, (block, (rows, keys, values)) in enumerate(layers):
            wqkv, wo, wgu, wd, bqkv, with_bqkv, bo, bgu, with_bgu, bd, norm = block
            if tap is not None:
                tap(i, x)
            # W (x / rms(x)) with 1 / rms(x) = 1 / sqrt(x.x / width + eps) as the product's alpha
            scale = 1 / sqrt(x.dot(x).item() / width + eps)
            qkv = addmv(bqkv, wqkv, x, beta=with_bqkv, alpha=scale)
            if norm is not None:
                heads = qkv.view(-1, d)[: len(norm)]
                heads.copy_(F.rms_norm(heads, (d,), None, eps) * norm)
            qkv.view(complex64).mul_(turns)
            rows[position] = qkv[queries:]
            q, k, v = qkv[:queries].view(shape), keys.narrow(2, 0, end), values.narrow(2, 0, end)
            x = addmv(x, wo, attention(q, k, v).view(queries))
            if bo is not None:
                x += bo
            scale = 1 / sqrt(x.dot(x).item() / width + eps)
            both = addmv(bgu, wgu, x, beta=with_bgu, alpha=scale)
            x = addmv(x, wd, silu(both[:inner]).mul_(both[inner:]))
            if bd is not None:
                x += bd
        final = (model.weights.norm * x).mul_(1 / sqrt(x.dot(x).item() / width + eps))
        if tap is not None:
            tap(spec.layers, final)
        return final[None]

    def few(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        mask: Tensor,
        start: int,
        slot: int,
        cache: Cache,
        tap: Tap | None,
    ) -> Tensor:
        """Feed a few tokens, whose cache rows begin at ``start``.

        ``mask`` [tokens * group, start + tokens] has 0 for each row that a token sees, else -inf. Heads that share keys are
        adjacent rows, so that the keys are read once for all of them.
        """
        spec, model = self.spec, self.model
        eps, d, kv, count = spec.eps, spec.head_dim, spec.kv_heads, len(tokens)
        queries, end, group = spec.heads * d, start + count, self.group
        row = queries + cache.row
        attention, norm, hypot = (
            F.scaled_dot_product_attention,
            torch.linalg.vector_norm,
            torch.hypot,
        )
        addmm, silu, complex64 = torch.addmm, torch._C._nn.silu, torch.complex64
        # x / rms(x) = sqrt(width) x / hypot(|x|, sqrt(eps width)); the root is the product's alpha
        root, least = math.sqrt(spec.width), self._least
        turns = self._turned(positions)
        size = model.rows(count)
        x = padded(F.embedding(torch.tensor(tokens), model.weights.embed), size)
        attended = torch.zeros(size, queries)  # rows of padding stay zero
        into = attended[:count].view(count, kv, group, d)
        layers = zip(self._matrices, model.products, cache.views(slot), strict=True)
        for i, (block, products, (rows, keys, values)) in enumerate(layers):
            wqkv, wo, wgu, wd, bqkv, with_bqkv, bo, bgu, with_bgu, bd, qk_norm = block
            if tap is not None:
                tap(i, x[:count])
            h = x / hypot(norm(x, 2, 1, True), least)
            if size < products.qkv.wide:
                qkv = addmm(bqkv, h, wqkv, beta=with_bqkv, alpha=root)
            else:
                qkv = products.qkv(h.mul_(root))
            qkv = qkv[:count]
            if qk_norm is not None:
                own = qkv.view(count, -1, d)[:, : len(qk_norm)]
                own.copy_(F.rms_norm(own, (d,), None, eps) * qk_norm)
            qkv.view(complex64).mul_(turns)
            rows[start:end] = qkv[:, queries:]
            q = qkv.as_strided((kv, count, group, d), (group * d, row, d, 1))
            k, v = keys.narrow(2, 0, end), values.narrow(2, 0, end)
            seen = attention(q.reshape(1, kv, count * group, d), k, v, mask)
            into.copy_(seen.view(kv, count, group, d).transpose(0, 1))
            x = _added(x, attended, wo, bo, products.out, size)
            h = x / hypot(norm(x, 2, 1, True), least)
            if size < products.gate_up.wide:
                both = addmm(bgu, h, wgu, beta=with_bgu, alpha=root)
            else:
                both = products.gate_up(h.mul_(root))
            gate, up = both.chunk(2, 1)
            x = _added(x, silu(gate).mul_(up), wd, bd, products.down, size)
        x = x[:count]
        final = x / hypot(norm(x, 2, 1, True), least) * self._norm
        if tap is not None:
            tap(spec.layers, final)
        return final

    def _turned(self, positions: Sequence[int]) -> Tensor:
        """Return the rotary factors of queries, keys and values at these positions, one row per token."""
        count, first = len(positions), positions[0]
        turns = self.model.turns(max(positions) + 1)
        behind = first + count
        chain = positions == list(range(first, behind))
        own = turns[first:behind] if chain else turns[torch.tensor(positions)]
        self._turning[:count].copy_(own)
        return self._factors[:count]


def _added(
    x: Tensor, rows: Tensor, matrix: Tensor, bias: Tensor | None, product: Product, count: int
) -> Tensor:
    """Return ``x + rows @ matrix + bias``, by the packed product if there are enough rows."""
    if count >= product.wide:
        return product(rows).add_(x)
    x = torch.addmm(x, rows, matrix)
    return x if bias is None else x.add_(bias)


def _summand(bias: Tensor | None) -> tuple[Tensor, int]:
    """Return the ``input`` and ``beta`` of torch.addmm for a bias; without one, a dummy times 0, as torch needs some input."""
    return (torch.zeros(1), 0) if bias is None else (bias, 1)
