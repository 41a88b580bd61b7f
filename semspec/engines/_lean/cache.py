"""The KV cache of all sessions: one slot per session, position-major, grown by doubling.

In position-major order ([slot, position, keys then values]), writing, moving and growing are plain
copies of whole rows; attention reads through strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from semspec.models.spec import Spec

FIRST_POSITIONS = 256
ALIGNED = 64  # bytes of a CPU cache line


class Tenant(Protocol):
    """The occupant of a slot."""

    slot: int
    tokens: list[int]  # one per position in use


class Cache:
    def __init__(self, spec: Spec, dtype: torch.dtype, device: torch.device) -> None:
        self.kv_heads, self.head_dim = spec.kv_heads, spec.head_dim
        self.row = 2 * spec.kv_heads * spec.head_dim
        self.tenants: list[Tenant | None] = []
        self.positions = 0
        empty = torch.zeros(0, 0, self.row, dtype=dtype, device=device)
        self.layers = [empty] * spec.layers
        self._views: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def session_bytes(self, positions: int) -> int:
        """Return the most bytes that a slot of so many positions can take, spare positions and slots included."""
        rounded = max(FIRST_POSITIONS, 1 << (positions - 1).bit_length())
        each = rounded * self.row * len(self.layers) * self.layers[0].element_size()
        return each * 3 // 2

    def admit(self, tenant: Tenant) -> None:
        """Assign a free slot to the tenant."""
        if None not in self.tenants:
            self._resize(len(self.tenants) + max(1, len(self.tenants) // 2), self.positions)
        tenant.slot = self.tenants.index(None)
        self.tenants[tenant.slot] = tenant

    def evict(self, tenant: Tenant) -> None:
        self.tenants[tenant.slot] = None

    def reserve(self, positions: int) -> None:
        """Make room for that many positions in every slot."""
        if positions > self.positions:
            positions = max(FIRST_POSITIONS, 1 << (positions - 1).bit_length())
            self._resize(len(self.tenants), positions)

    def _resize(self, slots: int, positions: int) -> None:
        used = [(t.slot, len(t.tokens)) for t in self.tenants if t and t.tokens]
        for i, old in enumerate(self.layers):
            # zeros, not empty: masked entries have weight 0, and 0 * nan would be nan
            new = _zeros(old, (slots, positions, self.row))
            for slot, count in used:
                new[slot, :count] = old[slot, :count]
            self.layers[i] = new
        self.tenants += [None] * (slots - len(self.tenants))
        self.positions = positions
        self._views.clear()

    def views(self, slot: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return for each layer a slot's rows, its keys and its values [1, kv_heads, positions, d]."""
        if slot not in self._views:
            self._views[slot] = [
                (layer[slot], *self.keys_values(layer, slot, 1, self.positions))
                for layer in self.layers
            ]
        return self._views[slot]

    def keys_values(
        self, layer: Tensor, slot: int, count: int, visible: int
    ) -> tuple[Tensor, Tensor]:
        """Return the first ``visible`` keys and values of adjacent slots, each [count, kv_heads, visible, head_dim]."""
        shape = (count, self.kv_heads, visible, self.head_dim)
        each = self.positions * self.row  # numbers of a slot
        strides, first = (each, self.head_dim, self.row, 1), slot * each
        return (
            layer.as_strided(shape, strides, first),
            layer.as_strided(shape, strides, first + self.kv_heads * self.head_dim),
        )

    def gather(self, tenant: Tenant, start: int, rows: Sequence[int]) -> None:
        """Move the rows at these positions to ``start`` and after, in this order."""
        index, end = torch.tensor(rows, device=self.layers[0].device), start + len(rows)
        for own, _, _ in self.views(tenant.slot):
            own[start:end] = own.index_select(0, index)

    def arrange(self, tenants: Sequence[Tenant]) -> int:
        """Move these tenants into adjacent slots, so that a batch reads one slice, and return the first slot.

        A move copies a whole context, but is only needed when the set of tenants changes.
        """
        count = len(tenants)
        if count == 1:
            return tenants[0].slot
        taken = {t.slot for t in tenants}
        starts = range(len(self.tenants) - count + 1)
        first = max(starts, key=lambda s: len(taken & set(range(s, s + count))))
        window = range(first, first + count)
        vacant = [slot for slot in window if slot not in taken]
        for tenant in tenants:
            if tenant.slot not in window:
                self._swap(tenant, vacant.pop())
        return first

    def _swap(self, tenant: Tenant, slot: int) -> None:
        other, old = self.tenants[slot], tenant.slot
        n = max(len(tenant.tokens), len(other.tokens) if other else 0)
        for layer in self.layers:
            kept = layer[slot, :n].clone() if other else None
            layer[slot, :n] = layer[old, :n]
            if kept is not None:
                layer[old, :n] = kept
        self.tenants[slot], self.tenants[old] = tenant, other
        tenant.slot = slot
        if other is not None:
            other.slot = old


def _zeros(like: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return zeros like ``like``; on a CPU, from pages that the system fills with zeros when first touched.

    Filling them here would take a second for a server's cache, in the middle of an answer.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    memory = np.zeros(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return torch.from_numpy(memory[start : start + size]).view(like.dtype).view(shape)
