"""EAGLE-3: a head on features of the target drafts, and costs the target no pass of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.decoding.sampling import probabilities
from semspec.deferred import Tensor, torch
from semspec.deferred import functional as F
from semspec.drafters._base import rows_of
from semspec.drafters._heads import HeadSession, head_sources
from semspec.drafters._trees import TreeOptions
from semspec.heads.eagle3 import Attend, Eagle3
from semspec.heads.eagle3_step import HeadStep, StepCache
from semspec.models.location import ModelConfig
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import Context, Draft, Read, Room, Sampling, Seen, What


@register("drafter", "eagle3")
@dataclass(frozen=True, kw_only=True)
class Eagle3Drafter(TreeOptions):
    """EAGLE-3: one decoder layer on low, middle and high features of the target."""

    head: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/eagle3-tiny"))

    tree: str = "dynamic"  # as in lm; chain: as long as draft_length says

    needs: ClassVar[frozenset[What]] = frozenset({What.HIDDEN})
    rows: ClassVar[bool] = True

    net: ClassVar[Eagle3]  # once bound

    def loads(self, run: Run) -> Sequence[Source]:
        return head_sources(self.head)

    def bind(self, run: Run) -> Self:
        target, weights = run.folders["target"], partial(run.weights, "target")
        return self.bound(net=Eagle3.load(self.head.fetch(), target, weights))

    def open(self, kit: Kit) -> Eagle3Session:
        return Eagle3Session(kit, self, self.net)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        Eagle3Head.example().save(folder / "head")
        head = ModelConfig(path=str(folder / "head"))
        yield cls(head=head)
        for tree in ("chain", "sampled"):
            yield cls(head=head, tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=9)


class Eagle3Session(HeadSession):
    """Follows the context with true features, and drafts on with the head's own output.

    A pair is the feature of a position and the token after it. The context's pairs stay in the cache;
    what a draft writes behind them is overwritten by the next, so that nothing is rolled back.
    """

    def __init__(self, kit: Kit, options: TreeOptions, head: Eagle3) -> None:
        super().__init__(kit, options)
        self.head = head
        self.watches = (Read(What.HIDDEN, layers=head.shape.layers),)
        self.known = 0  # features of so many positions were seen
        self.pairs = 0  # of the context, in the cache
        self.pending: list[Tensor] = []  # [n, 3, width] features from position ``pairs`` on
        self.step: HeadStep | None = None  # the short way, where there is one
        self.cache: PairCache | StepCache = PairCache(head)
        self.outputs = torch.empty(0)  # a [1 + n, width]: of the last pair, and of n nodes drafted
        self.sees: list[list[int]] = []  # of each node drafted, its ancestors and itself

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
            self.see((yield from rows_of(context, self.kit, self.watches, self.known)))
        with torch.inference_mode():
            self._follow(context.tokens)
        return self.drafted(room)

    def _follow(self, tokens: list[int]) -> None:
        """Takes the context's new pairs into the cache."""
        features = torch.cat(self.pending)
        if not self.pairs:
            self._settle(features.device)
        start, end = self.pairs, len(tokens) - 1
        self.pending = [features[end - start :]]
        g = self.head.fused(features[: end - start].flatten(1).to(self.head.fc))
        mask = None
        if start and end - start > 1:  # each pair sees those before it
            sees = np.tri(end - start, end, start, dtype=np.bool_)
            mask = self._mask(sees, 0, end, g.device)
        self.pairs = end
        self.outputs = self._read(tokens[start + 1 :], g, start, start, mask)[-1:]
        self.sees = []

    def _settle(self, device: torch.device) -> None:
        """Go to where the target's states are."""
        self.head = self.head.on(device)
        self.step = HeadStep.of(self.head)
        if self.step is not None:
            self.cache = StepCache(self.step)

    def _mask(self, sees: NDArray[np.bool_], base: int, end: int, device: torch.device) -> Tensor:
        """Return the mask of pairs that see, of the rows from ``base`` to ``end``, what is told, and all before them."""
        if self.step is not None:
            group = self.step.group
            mask = np.zeros((group * len(sees), end), np.float32)
            mask[:, base:][~sees.repeat(group, 0)] = -np.inf
            return torch.from_numpy(mask)
        seen = np.ones((len(sees), end), np.bool_)
        seen[:, base:] = sees
        return torch.from_numpy(seen).to(device)

    def _read(
        self, tokens: Sequence[int], hidden: Tensor, at: int, position: int, mask: Tensor | None
    ) -> Tensor:
        """a [n, width] of n pairs, written into the cache at ``at``.

        Pairs of the context stand one after the other from ``position`` on; nodes of a level, side
        by side at it.
        """
        turns = self.head.turns(position + len(tokens))
        turns = turns[position : position + (len(tokens) if at < self.pairs else 1)]
        if self.step is not None:
            assert isinstance(self.cache, StepCache)
            return self.step.pairs(tokens, hidden, turns, self.cache, at, mask)
        assert isinstance(self.cache, PairCache)
        ids = torch.tensor(tokens, device=hidden.device)
        return self.head.layer(ids, hidden, turns, self.cache.attend(at, mask))

    def rows(
        self, tokens: Sequence[int], parents: Sequence[int], count: int, sampling: Sampling
    ) -> Tensor:
        logits = self._logits(tokens, parents, count)
        return self.head.over_vocabulary(probabilities(logits, sampling))

    def likeliest(self, tokens: Sequence[int], parents: Sequence[int]) -> int:
        return self.head.token(int(self._logits(tokens, parents, 1).argmax()))

    def _logits(self, tokens: Sequence[int], parents: Sequence[int], count: int) -> Tensor:
        """Raw logits [count, draft vocabulary], for the nodes that ``rows`` is asked for."""
        new = self.outputs
        if tokens:
            new = self._nodes(tokens[-count:], list(parents[-count:]))
        return (self.head if self.step is None else self.step).logits(new)

    def _nodes(self, tokens: Sequence[int], parents: list[int]) -> Tensor:
        """a of new nodes of one level: their parents' outputs stand in for features."""
        before, count = len(self.sees), len(tokens)
        for node, parent in enumerate(parents, start=before):
            self.sees.append([*(self.sees[parent] if parent >= 0 else []), node])
        if count == 1 and len(self.sees[-1]) > before:  # of a chain, which goes on
            new = self._following(tokens[0], before)
            self.outputs = torch.cat([self.outputs, new])
            return new
        depth = len(self.sees[-1])
        sees = np.zeros((count, before + count), np.bool_)
        sees[np.arange(count)[:, None], self.sees[before:]] = True
        mask = self._mask(sees, self.pairs, self.pairs + before + count, self.outputs.device)
        hidden = self.outputs[[parent + 1 for parent in parents]]
        position = self.pairs + depth - 1
        new = self._read(tokens, hidden, self.pairs + before, position, mask)
        self.outputs = torch.cat([self.outputs, new])
        return new

    def _following(self, token: int, before: int) -> Tensor:
        """a [1, width] of the next token of a chain of ``before`` tokens: it sees all that was drafted."""
        at, hidden = self.pairs + before, self.outputs[-1:]
        if self.step is None:
            return self._read([token], hidden, at, at, None)
        assert isinstance(self.cache, StepCache)
        return self.step.pair(token, hidden, self.head.turns(at + 1)[at], self.cache, at)


class PairCache:
    """Keys and values of one context's pairs."""

    def __init__(self, head: Eagle3) -> None:
        self.keys = self.values = torch.empty(head.shape.kv_heads, 0, head.shape.head_dim)

    def attend(self, at: int, mask: Tensor | None) -> Attend:
        """Attention of new pairs, written at ``at``, as ``mask`` says; None: to all before them."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            end = at + k.shape[-2]
            self._reserve(end, k)
            self.keys[:, at:end], self.values[:, at:end] = k, v
            keys, values = self.keys[None, :, :end], self.values[None, :, :end]
            if at and mask is None:  # one pair: the heads that share keys become its rows
                rows = q.reshape(1, len(keys[0]), -1, q.shape[-1])
                return F.scaled_dot_product_attention(rows, keys, values).reshape(q.shape)
            # a whole prompt needs no mask of its length squared
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
