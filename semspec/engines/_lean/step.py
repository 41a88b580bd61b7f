"""The pass over one token of one session on a CPU, with as few operations as possible.

For small models the cost of a token is the cost of calling torch some 15 times a layer, so each
trick here removes a call: the norm's factor goes into the product as its ``alpha`` (its weights are
folded into the matrix), one complex product turns queries and keys, and adds ride on products.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model


class Step:
    """Float32 on a CPU only: relies on folded norms and on cheap reads of single numbers."""

    def __init__(self, model: Model) -> None:
        spec = model.spec
        self.model, self.spec = model, spec
        turning = spec.heads + spec.kv_heads
        # values are not turned: their factor stays 1
        self._row = torch.ones(turning + spec.kv_heads, spec.head_dim // 2, dtype=torch.complex64)
        self._turned = self._row[:turning]
        self._flat = self._row.view(-1)

        def zeros(bias: Tensor | None, width: int) -> Tensor:
            return torch.zeros(width) if bias is None else bias

        self._blocks = []
        for b in model.weights.blocks:
            bqkv, bgu = zeros(b.qkv_bias, len(b.qkv)), zeros(b.gate_up_bias, 2 * spec.inner)
            matrices = (b.qkv, bqkv, b.out, b.out_bias, b.gate_up, bgu, b.down, b.down_bias)
            self._blocks.append((*matrices, b.qk_norm))

    def run(
        self, token: int, position: int, slot: int, cache: Cache, states: list[Tensor] | None
    ) -> Tensor:
        """Return the state [width] after the final norm; append layers + 1 of [width] to ``states``."""
        spec, model = self.spec, self.model
        width, eps, d, inner = spec.width, spec.eps, spec.head_dim, spec.inner
        queries = spec.heads * d
        shape = (1, spec.kv_heads, spec.heads // spec.kv_heads, d)  # heads sharing keys as rows
        end = position + 1
        attention = F.scaled_dot_product_attention
        addmv, silu, sqrt, complex64 = torch.addmv, F.silu, math.sqrt, torch.complex64
        self._turned.copy_(model.turns(end)[position])
        turns = self._flat
        x = model.weights.embed[token]
        for (wqkv, bqkv, wo, bo, wgu, bgu, wd, bd, norm), (rows, keys, values) in zip(
            self._blocks, cache.views(slot), strict=True
        ):
            if states is not None:
                states.append(x)
            # W (x / rms(x)) with 1 / rms(x) = 1 / sqrt(x.x / width + eps) as the product's alpha
            qkv = addmv(bqkv, wqkv, x, alpha=1 / sqrt(x.dot(x).item() / width + eps))
            if norm is not None:
                heads = qkv.view(-1, d)[: len(norm)]
                heads.copy_(F.rms_norm(heads, (d,), None, eps) * norm)
            qkv.view(complex64).mul_(turns)
            rows[position] = qkv[queries:]
            q, k, v = qkv[:queries].view(shape), keys.narrow(2, 0, end), values.narrow(2, 0, end)
            x = addmv(x, wo, attention(q, k, v).view(queries))
            if bo is not None:
                x += bo
            both = addmv(bgu, wgu, x, alpha=1 / sqrt(x.dot(x).item() / width + eps))
            gate, up = both[:inner], both[inner:]
            x = addmv(x, wd, silu(gate).mul_(up))
            if bd is not None:
                x += bd
        x = model.final(x)
        if states is not None:
            states.append(x)
        return x
