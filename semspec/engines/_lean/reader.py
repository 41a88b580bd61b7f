"""Collect the values that one query reads while its passes run.

Rows are counted by *index*: a context token's index is its position; the query's tokens (a chain, or
the nodes of a tree) follow, then the generated tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semspec.decoding.pooling import Pool, Span
from semspec.engines._lean.rows import FROM_LOGITS, OVER_VOCABULARY, LogitRows
from semspec.errors import UserError
from semspec.models.spec import Spec
from semspec.types import Answer, Query, Read, What

OF_ROWS = OVER_VOCABULARY | {What.HIDDEN, What.ATTENTION}


class Reader:
    def __init__(self, query: Query, answer: Answer, spec: Spec, embed: Tensor) -> None:
        self.query, self.answer, self.spec, self.embed = query, answer, spec, embed
        self.generating, context = query.generate is not None, len(query.context)
        self.total = context + len(query.tokens)
        self.tokens = answer.tokens if self.generating else query.tokens
        last = self.total - 1 if self.generating else context - 1
        self.row = last if query.rows_from is None else query.rows_from
        if not 0 <= self.row < self.total:
            raise UserError(f"rows_from={self.row} of {self.total} tokens")
        asked = {read.what for read in query.reads}
        self.hidden: dict[int, list[Tensor]] = {}
        self.attention: dict[int, list[Tensor]] = {}
        self.pools: dict[Read, Pool] = {}
        # the first index whose token must be fed, and the first whose logits are wanted
        feed = [self.row] if asked & OF_ROWS else []
        logits = [self.row] if asked & OVER_VOCABULARY else []
        if self.generating or What.LOGPROBS in asked:
            logits.append(last)
        for read in query.reads:
            if read.what is What.HIDDEN:
                self.hidden |= {i: [] for i in self._layers(read)}
            elif read.what is What.ATTENTION:
                self.attention |= {i: [] for i in self._layers(read)}
            elif read.what is What.POOLED:
                spans, layers = self._spans(read, context), self._layers(read)
                self.pools[read] = Pool(read.reduce, spans, layers, spec.width, embed.device)
                feed += [] if self.generating else [a for a, _ in spans]
        pooled = {layer for pool in self.pools.values() for layer in pool.layers}
        self.taps = pooled | set(self.hidden)  # the layers whose hidden states are read
        self.logit_row = min(logits, default=self.total)
        self.needed_from = min([*feed, self.logit_row])
        empty = torch.empty(0, spec.vocabulary, device=embed.device)
        self.logits = LogitRows(query, self.logit_row, self.row, last, self.tokens, empty)

    def _layers(self, read: Read) -> list[int]:
        count = self.spec.layers + (read.what is not What.ATTENTION)
        default = tuple(range(count)) if read.what is What.POOLED else (-1,)
        layers = [i + count if i < 0 else i for i in read.layers or default]
        if not all(0 <= i < count for i in layers):
            raise UserError(f"{read.what.value}: layers {read.layers}, but there are {count}")
        return layers

    def _spans(self, read: Read, context: int) -> list[Span]:
        if self.generating:
            return [(self.total, None)]  # the boundary finds the ends
        n = len(self.query.tokens)
        if not all(0 <= a < b <= n for a, b in read.spans):
            raise UserError(f"pooled: spans {read.spans} of {n} tokens")
        return [(context + a, context + b) for a, b in read.spans]

    def states(self, layers: tuple[int, ...], x: Tensor, start: int) -> None:
        """Take the states [layers, tokens, width] of these layers for the tokens from index ``start`` on."""
        for own, layer in zip(x, layers, strict=True):
            if layer in self.hidden and start + len(own) > self.row:
                rows = own[max(self.row - start, 0) :]
                self.hidden[layer].append(rows.to(torch.float32, copy=True))
        for pool in self.pools.values():
            pool.states(layers, x, start)

    def token(self, states: Mapping[int, Tensor], row: int) -> None:
        """Take the states of one generated token: this row of the tapped layers' states [batch, width]."""
        for layer, rows in self.hidden.items():
            rows.append(states[layer].view(-1, self.spec.width)[row : row + 1].float())
        for pool in self.pools.values():
            own = [states[layer].view(-1, self.spec.width)[row] for layer in pool.layers]
            pool.token(torch.stack(own))

    def weights(self, layer: int, weights: Tensor, start: int) -> None:
        """Take one layer's attention weights [tokens, positions]."""
        if layer in self.attention and start + len(weights) > self.row:
            self.attention[layer].append(weights[max(self.row - start, 0) :].clone())

    def unit(self, end: int) -> None:
        """Close the pools of a generated unit that ends after ``end`` generated tokens."""
        for pool in self.pools.values():
            pool.close(self.total + end)

    def values(self) -> dict[Read, Any]:
        """Return the value of every read."""
        self.logits.flush()
        # a unit cut short by the limit or the end of text counts, too
        if self.generating and self.answer.finish != "units":
            end = self.total + len(self.tokens)
            for pool in (pool for pool in self.pools.values() if pool.spans[-1][0] < end):
                pool.close(end)
        return {read: self._value(read) for read in self.query.reads}

    def _value(self, read: Read) -> Any:
        end = self.total - 1 + len(self.tokens) if self.generating else self.total
        count, device = max(end - self.row, 0), self.embed.device
        if read.what in FROM_LOGITS:
            return self.logits.value(read, end)
        if read.what is What.POOLED:
            return self.pools[read].value()
        if read.what is What.EMBEDDINGS:
            ids = torch.tensor(list(self.tokens), dtype=torch.long, device=device)
            return F.embedding(ids, self.embed).float()
        layers = self._layers(read)
        if read.what is What.HIDDEN:
            none = torch.empty(0, self.spec.width, device=device)
            return torch.stack([torch.cat([none, *self.hidden[i]])[:count] for i in layers], 1)
        value = torch.zeros(len(layers), count, end, device=device)
        for into, i in zip(value, layers, strict=True):
            at = 0
            for part in self.attention[i]:
                part = part[: count - at, :end]
                into[at : at + len(part), : part.shape[1]] = part
                at += len(part)
        return value
