"""The forward pass over the new tokens of one or more sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.packed import Product, packing, padded, padded_count
from semspec.models.spec import Spec
from semspec.models.weights import Weights

T = TypeVar("T")
Tap = Callable[[int, Tensor], None]
"""Called with a layer, as in transformers' hidden_states, and its states [tokens, width]."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sessions in adjacent slots whose new tokens attend together."""

    first: int  # index of the group's first session in the pass
    slot: int  # of the first session
    batch: int
    longest: int  # the most new tokens of any session
    visible: int  # cache rows that any token may attend to
    rows: slice  # of the pass
    mask: Tensor | None  # [batch, 1, longest, visible] 0: visible, else -inf; None: no mask needed
    causal: bool  # no mask; each token attends to all before it, from position 0 on
    padded: Tensor | None  # [tokens] each token's place in [batch * longest]; None: no padding

    def members(self, sessions: Sequence[T]) -> Sequence[T]:
        """Return the group's part of a sequence that has one element per session of the pass."""
        return sessions[self.first : self.first + self.batch]


AttentionTap = Callable[[int, Group, Tensor], None]
"""Called with a layer, and a group's attention weights [batch, longest, visible], averaged over heads."""


@dataclass(frozen=True, slots=True)
class Place:
    """The layout of a pass. Its tokens are packed: all of the first session's, then the next's."""

    rows: int  # multiplied by the matrices: the tokens and padding (``packed.padded_count``)
    groups: Sequence[Group]
    write: Tensor  # [tokens] each token's row in the cache seen as [slots * positions]
    turns: Tensor  # [tokens, 1, head_dim / 2] the rotary embedding of each position, complex


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
        self._wide = min(
            p.wide for own in self.products for p in (own.qkv, own.out, own.gate_up, own.down)
        )
        self._turns = torch.empty(0, 1, spec.head_dim // 2, dtype=torch.complex64)

    def bytes(self) -> int:
        w = self.weights
        tensors: list[Tensor | None] = [w.embed, w.norm, None if w.head is w.embed else w.head]
        tensors += [getattr(block, name) for block in w.blocks for name in block.__slots__]
        own = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        products = [self.head]
        for layer in self.products:
            products += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return own + sum(p.matrix.nbytes for p in products if p.packed is not None)

    def turns(self, positions: int) -> Tensor:
        """Return rope_scale * exp(i * position * frequency) for at least so many positions."""
        if self._turns.shape[0] < positions:
            count = max(256, 1 << (positions - 1).bit_length())
            angles = torch.outer(torch.arange(count).float(), self.spec.frequencies)
            scale = torch.full_like(angles, self.spec.rope_scale)
            self._turns = torch.polar(scale, angles)[:, None].to(self.device)
        return self._turns

    def rows(self, tokens: int) -> int:
        """Return how many rows a pass over so many tokens has, with padding if packed matrices are used."""
        return tokens if tokens < self._wide else padded_count(tokens)

    def logits(self, rows: Tensor) -> Tensor:
        """Return the raw float32 logits of states after the final norm."""
        count = rows.shape[0]
        if count < self.head.wide:
            found = self.head(rows)
        else:
            found = self.head(padded(rows, padded_count(count)))[:count]
        return found if self.dtype == torch.float32 else found.float()

    def final(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.spec.width,), self.weights.norm, self.spec.eps)

    def forward(
        self,
        ids: Tensor,
        place: Place,
        cache: Cache,
        tap: Tap | None,
        attention_tap: AttentionTap,
        attention_layers: Collection[int],
    ) -> Tensor:
        """Return states [tokens, width] after the final norm; cache the tokens' keys and values."""
        spec, d, count = self.spec, (self.spec.width,), len(ids)
        x = padded(F.embedding(ids, self.weights.embed), place.rows)
        queries = spec.heads * spec.head_dim
        attended = x.new_zeros(place.rows, queries)  # rows of padding stay zero
        groups = [(group, attended[group.rows], self._gaps(group)) for group in place.groups]
        for i, (block, products) in enumerate(zip(self.weights.blocks, self.products, strict=True)):
            if tap:
                tap(i, x[:count])
            h = F.rms_norm(x, d, block.norm1, spec.eps)
            qkv = products.qkv(h)[:count]
            self._turn(qkv, block.qk_norm, place.turns)
            stored = cache.layers[i]
            stored.view(-1, cache.row).index_copy_(0, place.write, qkv[:, queries:])
            for group, into, gaps in groups:
                k, v = cache.keys_values(stored, group.slot, group.batch, group.visible)
                q = self._pad(qkv[group.rows, :queries], group, gaps)
                if i in attention_layers:
                    attention_tap(i, group, self._weights(q, k, group.mask))
                self._attend(q, k, v, group, into)
            x = x + products.out(attended)
            h = F.rms_norm(x, d, block.norm2, spec.eps)
            gate, up = products.gate_up(h).chunk(2, -1)
            x = x + products.down(F.silu(gate).mul_(up))
        final = self.final(x)[:count]
        if tap:
            tap(spec.layers, final)
        return final

    def _turn(self, qkv: Tensor, norm: Tensor | None, turns: Tensor) -> None:
        """Apply the rotary embedding to queries and keys in place, as one complex product per pair."""
        spec = self.spec
        heads = qkv.view(len(qkv), -1, spec.head_dim)[:, : spec.heads + spec.kv_heads]
        if norm is not None:
            heads.copy_(F.rms_norm(heads, (spec.head_dim,), None, spec.eps) * norm)
        pairs = heads.float().view(*heads.shape[:2], -1, 2)
        turned = torch.view_as_complex(pairs).mul_(turns)
        if qkv.dtype != torch.float32:  # then ``pairs`` is a copy
            heads.copy_(torch.view_as_real(turned).flatten(-2))

    def _gaps(self, group: Group) -> Tensor | None:
        """Return zeros to scatter a group's queries into; None if the group has no padding."""
        if group.padded is None:
            return None
        shape = group.batch * group.longest, self.spec.heads * self.spec.head_dim
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _pad(self, q: Tensor, group: Group, gaps: Tensor | None) -> Tensor:
        """Reshape [tokens, heads * head_dim] to [batch, heads, longest, head_dim]."""
        if gaps is not None and group.padded is not None:
            q = gaps.index_copy_(0, group.padded, q)
        return q.view(group.batch, group.longest, -1, self.spec.head_dim).transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, group: Group, into: Tensor) -> None:
        """Write softmax(q k / sqrt(d)) v to [tokens, heads * head_dim]."""
        spec, mask = self.spec, group.mask
        batch, _, longest, d = q.shape
        shared = spec.heads // spec.kv_heads
        if shared == 1 or (longest > 1 and not q.is_cuda):
            o = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=group.causal, enable_gqa=shared > 1
            )
        else:
            # heads that share keys become extra rows: fused CUDA kernels do not support grouped heads
            folded = q.reshape(batch, spec.kv_heads, shared * longest, d)
            if mask is not None and longest > 1:
                mask = mask.repeat(1, 1, shared, 1)
            o = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
            o = o.reshape(batch, spec.heads, longest, d)
        o = o.transpose(1, 2)
        if group.padded is None:
            into.view(batch, longest, spec.heads, d).copy_(o)
        else:
            torch.index_select(o.reshape(batch * longest, -1), 0, group.padded, out=into)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Return attention weights averaged over heads, float32 [batch, longest, visible]."""
        k = k.repeat_interleave(self.spec.heads // self.spec.kv_heads, 1)
        scores = (q.float() @ k.float().mT) * self.spec.head_dim**-0.5
        if mask is not None:
            scores += mask
        weights: Tensor = scores.softmax(-1).mean(1)
        return weights
