"""Translation of queries to requests of SGLang's ``/generate``, and of its replies to values. Pure.

A request with ``logprob_start_len`` s returns: as entry j of the input's log-probabilities those of the
token at s + j, and thus of the row at s + j - 1 (entry 0 has none); and with ``max_new_tokens`` 0 the
row of the last token among the output's. Temperature 0 makes the latter raw; the former always are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semspec.errors import UserError
from semspec.sglang_plugin import protocol
from semspec.types import Query, Read, Sampling, Stops, What

Payload = dict[str, Any]

OF_LOGITS = frozenset({What.TOP_K, What.LOGPROBS})
OF_PLUGIN = frozenset({What.POOLED, What.SCORE})
OFFERS = OF_LOGITS | OF_PLUGIN
LOOK = 64  # tokens generated at a time if nothing shows where a unit may end


def write(
    ids: Sequence[int], sampling: Sampling, limit: int, stop_ids: frozenset[int], stops: Stops
) -> Payload:
    """Return a request for up to ``limit`` tokens after ``ids``."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        # override the server's default preferences
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": limit,
        "stop_token_ids": sorted(stop_ids),
        "no_stop_trim": True,
    }
    if stops.texts:
        params["stop"] = list(stops.texts)
    if stops.patterns:
        params["stop_regex"] = list(stops.patterns)
    return {"input_ids": list(ids), "sampling_params": params}


@dataclass(slots=True)
class Scoring:
    """One pass over tokens after a context, and the reads of it."""

    ids: list[int]
    base: int  # index of the first scored token: the context's length
    row: int  # index of row 0
    reads: tuple[Read, ...]
    spans: tuple[tuple[int, int], ...] = ()  # of the units that were generated
    last_row: bool = True  # the row after the last token is read as well

    @classmethod
    def of(cls, query: Query, tokens: Sequence[int] | None = None) -> Scoring:
        """Score a query's chain, or with ``tokens`` one path of its tree."""
        context = query.context.tokens
        row = len(context) - 1 if query.rows_from is None else query.rows_from
        if tokens is not None:
            row = min(row, len(context) - 1)
        ids = [*context, *(query.tokens if tokens is None else tokens)]
        return cls(ids, len(context), row, query.reads)

    @classmethod
    def of_written(cls, query: Query, written: Sequence[int], ends: Sequence[int]) -> Scoring:
        """Score tokens that have just been generated."""
        before = [*query.context.tokens, *query.tokens]
        row = len(before) - 1 if query.rows_from is None else query.rows_from
        spans = tuple(zip([0, *ends], ends, strict=False))
        return cls([*before, *written], len(before), row, query.reads, spans, last_row=False)

    @property
    def start(self) -> int | None:
        """``logprob_start_len``; None if no log-probabilities are read."""
        at = [self.row for read in self.reads if read.what is What.TOP_K]
        at += [self.base - 1 for read in self.reads if read.what is What.LOGPROBS]
        return min(at, default=None)

    def payload(self) -> Payload:
        params: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 0}
        ask = protocol.ask_for(self.reads, self.base, self.spans)
        if ask is not None:
            params["custom_params"] = ask.params()
        payload: Payload = {"input_ids": self.ids, "sampling_params": params}
        if (start := self.start) is not None:
            k = max((read.k for read in self.reads if read.what is What.TOP_K), default=0)
            payload |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": k}
        return payload

    def values(self, reply: Mapping[str, Any], server: str) -> dict[Read, Any]:
        """Return the value of every read; raise UserError if the reply has another shape."""
        meta = reply["meta_info"]
        values: dict[Read, Any] = dict(protocol.values(self.reads, meta, server))
        try:
            for read in self.reads:
                if read.what is What.TOP_K:
                    values[read] = self._top_k(meta, read.k)
                elif read.what is What.LOGPROBS:
                    values[read] = self._logprobs(meta)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UserError(
                f"{server} sent log-probabilities of another shape than SGLang's"
                f" ({type(error).__name__}): is there a proxy between that changes them?"
            ) from error
        return values

    def _logprobs(self, meta: Mapping[str, Any]) -> Tensor:
        count = len(self.ids) - self.base
        entries = meta["input_token_logprobs"]
        own = entries[len(entries) - count :]
        if [entry[1] for entry in own] != self.ids[self.base :]:
            raise ValueError("other tokens")
        return torch.tensor([entry[0] for entry in own], dtype=torch.float32)

    def _top_k(self, meta: Mapping[str, Any], k: int) -> tuple[Tensor, Tensor]:
        assert self.start is not None
        rows = [*meta["input_top_logprobs"][1:], *meta["output_top_logprobs"]]
        rows = rows[self.row - self.start :]
        if not self.last_row:
            rows = rows[:-1]
        wanted = len(self.ids) - self.row - (not self.last_row)
        if len(rows) != wanted:
            raise ValueError("other rows")
        ids = [[entry[1] for entry in row[:k]] for row in rows]
        values = [[entry[0] for entry in row[:k]] for row in rows]
        shape = (wanted, k)
        return (
            torch.tensor(ids, dtype=torch.long).reshape(shape),
            torch.tensor(values, dtype=torch.float32).reshape(shape),
        )


@dataclass(slots=True)
class Paths:
    """A tree as the paths from its root to its leaves, because a server reads chains."""

    parents: Sequence[int]
    paths: list[list[int]] = field(init=False)  # nodes

    def __post_init__(self) -> None:
        inner = set(self.parents)
        self.paths = []
        for leaf in (node for node in range(len(self.parents)) if node not in inner):
            path, node = [], leaf
            while node >= 0:
                path.append(node)
                node = self.parents[node]
            self.paths.append(path[::-1])

    def gather(self, query: Query, parts: Sequence[Mapping[Read, Any]]) -> dict[Read, Any]:
        """Merge the values of the paths; each node's come from the first path that it is on."""
        context = len(query.context)
        row = context - 1 if query.rows_from is None else query.rows_from
        # by node: (path, index among the path's tokens)
        place: dict[int, tuple[int, int]] = {}
        for p, path in enumerate(self.paths):
            for depth, node in enumerate(path):
                place.setdefault(node, (p, depth))
        values: dict[Read, Any] = {}
        for read in query.reads:
            if read.what is What.LOGPROBS:
                found = [place[node] for node in range(len(self.parents))]
                values[read] = torch.stack([parts[p][read][depth] for p, depth in found])
            elif read.what is What.TOP_K:
                # rows from ``row`` on: the context's, which every path has, then the nodes'
                at = [(0, i - row) for i in range(row, context)]
                first = min(row, context - 1)  # row 0 of every path
                nodes = range(max(row - context, 0), len(self.parents))
                at += [(place[n][0], context - first + place[n][1]) for n in nodes]
                values[read] = tuple(
                    torch.stack([parts[p][read][half][i] for p, i in at]) for half in (0, 1)
                )
            else:
                raise UserError(
                    "pooled states of a tree cannot be read through SGLang: use engine=hf"
                )
        return values
