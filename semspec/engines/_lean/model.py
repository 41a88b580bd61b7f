"""The forward pass over the new tokens of one or more sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.packed import Product, packing
from semspec.models.spec import Spec
from semspec.models.weights import Weights

Tap = Callable[[int, Tensor], None]
"""Called with a layer, as in transformers' hidden_states, and its states [tokens, width] or its attention
weights [batch, longest, positions], averaged over heads."""


@dataclass(frozen=True, slots=True)
class Place:
    """The layout of a pass. Its tokens are packed: all of the first session's, then the next's."""

    slot: int  # of the first session; the batch takes ``batch`` adjacent slots
    batch: int
    longest: int  # the most new tokens of any session
    visible: int  # cache rows that any token may attend to
    write: Tensor  # [tokens] rows of the cache as slots * positions
    turns: Tensor  # [tokens, 1, head_dim / 2] the rotary turn of each position, complex
    mask: Tensor | None  # [batch, 1, longest, visible] 0: visible, else -inf; None: no mask needed
    causal: bool  # no mask; each token attends to all before it, from position 0 on
    padded: Tensor | None  # [tokens] each token's place in [batch * longest]; None: no gaps


@dataclass(frozen=True, slots=True)
class Products:
    """The matrices of one layer."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product


class Model:
    def __init__(self, spec: Spec, weights: Weights) -> None:
        self.spec, self.weights = spec, weights
        self.device, self.dtype = weights.embed.device, weights.embed.dtype
        matrices = [m for b in weights.blocks for m in (b.qkv, b.out, b.gate_up, b.down)]
        packs = packing([*matrices, weights.head])
        self.head = Product(weights.head, None, packs)
        self.products = [
            Products(
                Product(b.qkv, b.qkv_bias, packs),
                Product(b.out, b.out_bias, packs),
                Product(b.gate_up, b.gate_up_bias, packs),
                Product(b.down, b.down_bias, packs),
            )
            for b in weights.blocks
        ]
        self._turns = torch.empty(0, 1, spec.head_dim // 2, dtype=torch.complex64)

    def bytes(self) -> int:
        w = self.weights
        tensors: list[Tensor | None] = [w.embed, w.norm, None if self.spec.tied else w.head]
        tensors += [getattr(block, name) for block in w.blocks for name in block.__slots__]
        own = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        products = [self.head]
        for layer in self.products:
            products += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return own + sum(p.matrix.nbytes for p in products if p.packed is not None)

    def turns(self, positions: int) -> Tensor:
        """Return exp(i * position * frequency) for at least that many positions, scaled."""
        if len(self._turns) < positions:
            count = max(256, 1 << (positions - 1).bit_length())
            angles = torch.outer(torch.arange(count).float(), self.spec.frequencies)
            scale = torch.full_like(angles, self.spec.rope_scale)
            self._turns = torch.polar(scale, angles)[:, None].to(self.device)
        return self._turns

    def logits(self, rows: Tensor) -> Tensor:
        """Return the raw float32 logits of states after the final norm."""
        return self.head(rows).float()

    def final(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.spec.width,), self.weights.norm, self.spec.eps)

    def forward(
        self,
        ids: Tensor,
        place: Place,
        cache: Cache,
        tap: Tap | None,
        attention_tap: Tap,
        attention_layers: Collection[int],
    ) -> Tensor:
        """Return states [tokens, width] after the final norm; cache the tokens' keys and values."""
        spec, d = self.spec, (self.spec.width,)
        x = F.embedding(ids, self.weights.embed)
        queries = spec.heads * spec.head_dim
        for i, (block, products) in enumerate(zip(self.weights.blocks, self.products, strict=True)):
            if tap:
                tap(i, x)
            h = F.rms_norm(x, d, block.norm1, spec.eps)
            qkv = products.qkv(h)
            self._turn(qkv, block.qk_norm, place.turns)
            stored = cache.layers[i]
            stored.view(-1, cache.row).index_copy_(0, place.write, qkv[:, queries:])
            keys, values = cache.keys_values(stored, place.slot, place.batch)
            q = self._pad(qkv[:, :queries], place)
            k, v = keys[:, :, : place.visible], values[:, :, : place.visible]
            if i in attention_layers:
                attention_tap(i, self._weights(q, k, place.mask))
            attended = self._attend(q, k, v, place)
            if place.padded is not None:
                attended = attended[place.padded]
            x = x + products.out(attended)
            h = F.rms_norm(x, d, block.norm2, spec.eps)
            gate, up = products.gate_up(h).chunk(2, -1)
            x = x + products.down(F.silu(gate).mul_(up))
        final = self.final(x)
        if tap:
            tap(spec.layers, final)
        return final

    def _turn(self, qkv: Tensor, norm: Tensor | None, turns: Tensor) -> None:
        """Apply rotary embedding to queries and keys in place: one complex product per pair."""
        spec = self.spec
        heads = qkv.view(len(qkv), -1, spec.head_dim)[:, : spec.heads + spec.kv_heads]
        if norm is not None:
            heads.copy_(F.rms_norm(heads, (spec.head_dim,), None, spec.eps) * norm)
        pairs = heads.float().view(*heads.shape[:2], -1, 2)
        turned = torch.view_as_complex(pairs).mul_(turns)
        if qkv.dtype != torch.float32:  # then ``pairs`` is a copy
            heads.copy_(torch.view_as_real(turned).flatten(-2))

    def _pad(self, q: Tensor, place: Place) -> Tensor:
        """Reshape [tokens, heads * head_dim] to [batch, heads, longest, head_dim]."""
        if place.padded is not None:
            gaps = q.new_zeros(place.batch * place.longest, q.shape[1])
            q = gaps.index_copy_(0, place.padded, q)
        return q.view(place.batch, place.longest, -1, self.spec.head_dim).transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        """Return softmax(q k / sqrt(d)) v as [batch * longest, heads * head_dim]."""
        spec, mask = self.spec, place.mask
        batch, _, longest, d = q.shape
        group = spec.heads // spec.kv_heads
        if group == 1 or (longest > 1 and not q.is_cuda):
            o = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=place.causal, enable_gqa=group > 1
            )
        else:
            # heads that share keys become more rows: fused kernels on CUDA do not support groups
            folded = q.reshape(batch, spec.kv_heads, group * longest, d)
            if mask is not None:
                mask = mask.repeat(1, 1, group, 1)
            o = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
            o = o.view(batch, spec.heads, longest, d)
        return o.transpose(1, 2).reshape(batch * longest, spec.heads * d)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention weights averaged over heads, float32 [batch, longest, visible]."""
        k = k.repeat_interleave(self.spec.heads // self.spec.kv_heads, 1)
        scores = (q.float() @ k.float().mT) * self.spec.head_dim**-0.5
        if mask is not None:
            scores += mask
        weights: Tensor = scores.softmax(-1).mean(1)
        return weights
