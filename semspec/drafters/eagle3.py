"""EAGLE-3: a head on features of the target drafts, and costs the target no pass of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.heads.eagle3 import Attend, Eagle3
from semspec.models import ModelConfig
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.sampling import draw_next, probabilities
from semspec.types import Answer, Context, Draft, Query, Read, Room, Seen, What


@register("drafter", "eagle3")
@dataclass(frozen=True, kw_only=True)
class Eagle3Drafter(DrafterBase):
    """EAGLE-3: one decoder layer on low, middle and high features of the target."""

    head: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/eagle3-tiny"))

    needs: ClassVar[frozenset[What]] = frozenset({What.HIDDEN})

    def prepare(self, target: Path) -> Eagle3Drafter:
        options = {f.name: getattr(self, f.name) for f in fields(Eagle3Drafter)}
        return _Loaded(**options, net=Eagle3.load(self.head.fetch(), target))

    def open(self, kit: Kit) -> Eagle3Session:
        raise AssertionError("prepare() comes first")


@dataclass(frozen=True, kw_only=True)
class _Loaded(Eagle3Drafter):
    net: Eagle3

    def open(self, kit: Kit) -> Eagle3Session:
        return Eagle3Session(kit, self.net)


class Eagle3Session(DraftSessionBase):
    """Follows the context with true features, and drafts on with the head's own output.

    A pair is the feature of a position and the token after it. The context's pairs stay in the cache;
    what a draft writes behind them is overwritten by the next, so that nothing is rolled back.
    """

    def __init__(self, kit: Kit, head: Eagle3) -> None:
        self.kit, self.head = kit, head
        self.watches = (Read(What.HIDDEN, layers=head.shape.layers),)
        self.known = 0  # features of so many positions were seen
        self.pairs = 0  # of the context, in the cache
        self.pending: list[Tensor] = []  # [n, 3, width] features from position ``pairs`` on
        self.cache = PairCache(head)

    def see(self, seen: Seen) -> None:
        new = seen.start + seen.count - self.known
        if new > 0 and seen.start <= self.known:  # what lies behind a gap is asked for
            self.pending.append(seen.values[self.watches[0]][seen.count - new : seen.count])
            self.known += new

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        pairs = len(context) - 1
        if pairs < 1:
            return Draft()
        if self.known < pairs:  # the prompt, once; and what was written without a pass over it
            kit, reads = self.kit, self.watches
            answer: Answer = yield Query(
                "target", context, kit.sampling, kit.rng, reads=reads, rows_from=self.known
            )
            self.see(Seen(self.known, len(context) - self.known, answer.values))
        with torch.inference_mode():
            return self._chain(self._follow(context.tokens), room)

    def _follow(self, tokens: list[int]) -> Tensor:
        """a [1, width] of the context's last pair, once the new pairs are in the cache."""
        features = torch.cat(self.pending)
        self.head = self.head.on(features.device)
        start, end = self.pairs, len(tokens) - 1
        self.pending = [features[end - start :]]
        g = self.head.fused(features[: end - start].flatten(1).to(self.head.fc))
        mask = None
        if end - start > 1:  # each pair sees those before it
            mask = torch.ones(end - start, end, dtype=torch.bool, device=g.device).tril(start)
        a = self._read(tokens[start + 1 :], g, start, slice(start, end), mask)
        self.pairs = end
        return a[-1:]

    def _read(
        self, tokens: list[int], hidden: Tensor, at: int, positions: slice, mask: Tensor | None
    ) -> Tensor:
        """a [n, width] of n pairs, which are written into the cache at ``at``."""
        ids = torch.tensor(tokens, device=hidden.device)
        turns = self.head.turns(positions.stop)[positions]
        return self.head.layer(ids, hidden, turns, self.cache.attend(at, mask))

    def _chain(self, a: Tensor, room: Room) -> Draft:
        kit, head = self.kit, self.head
        tokens: list[int] = []
        ends: list[int] = []
        rows: list[Tensor] = []
        boundary = kit.boundary()
        while True:
            rows.append(probabilities(head.logits(a)[0], kit.sampling))
            tokens.append(head.token(draw_next(rows[-1], kit.sampling, kit.rng)))
            end = boundary.feed(tokens[-1])
            if end is not None:
                ends.append(len(tokens) + end)
            if len(tokens) >= room.limit or len(ends) >= room.units or tokens[-1] in kit.stop_ids:
                break
            at = self.pairs + len(tokens) - 1
            a = self._read(tokens[-1:], a, at, slice(at, at + 1), None)
        if len(ends) < room.units and (not ends or ends[-1] < len(tokens)):
            ends.append(len(tokens))  # what was left open counts as a unit
        # greedy tokens were not sampled: point masses
        probs = None if kit.sampling.greedy else head.over_vocabulary(torch.stack(rows))
        return Draft(tokens, ends, probs=probs)


class PairCache:
    """Keys and values of one context's pairs."""

    def __init__(self, head: Eagle3) -> None:
        self.keys = self.values = torch.empty(head.shape.kv_heads, 0, head.shape.head_dim)

    def attend(self, at: int, mask: Tensor | None) -> Attend:
        """Attention of new pairs, written at ``at``, to all before it and as ``mask`` says."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            end = at + k.shape[-2]
            self._reserve(end, k)
            self.keys[:, at:end], self.values[:, at:end] = k, v
            keys, values = self.keys[None, :, :end], self.values[None, :, :end]
            if mask is None:  # one pair: the heads that share keys become its rows
                rows = q.reshape(1, len(keys[0]), -1, q.shape[-1])
                return F.scaled_dot_product_attention(rows, keys, values).reshape(q.shape)
            return F.scaled_dot_product_attention(
                q[None], keys, values, attn_mask=mask, enable_gqa=True
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
