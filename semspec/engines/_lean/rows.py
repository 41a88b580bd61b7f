"""Convert rows of logits into the values that a query reads, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from semspec.decoding.sampling import log_probabilities, probabilities
from semspec.types import Query, Read, What

OVER_VOCABULARY = frozenset({What.PROBS, What.LOGITS, What.TOP_K})
FROM_LOGITS = OVER_VOCABULARY | {What.LOGPROBS}
FLUSH = 128  # rows of raw logits that may wait before they are converted


class LogitRows:
    """The logit rows of one query, in order from index ``first`` on; row ``last + j`` predicts ``tokens[j]``."""

    def __init__(
        self, query: Query, first: int, row: int, last: int, tokens: Sequence[int], empty: Tensor
    ) -> None:
        self.query, self.row, self.last, self.tokens, self.empty = query, row, last, tokens, empty
        self.first = self.at = first  # ``at``: index of the first waiting row
        self.reads = [r for r in query.reads if r.what in FROM_LOGITS]
        self.kept: dict[Read, list[Any]] = {read: [] for read in self.reads}
        self.waiting: list[Tensor] = []
        self.held = 0  # number of waiting rows
        self.draws = query.generate is not None and not query.sampling.greedy
        self.drawn: list[Tensor] = []  # PROBS: the rows that tokens were drawn from

    def add(self, rows: Tensor) -> None:
        if not self.reads:
            return
        if self.held >= FLUSH:
            self.flush()  # the tokens that the waiting rows predict have been drawn by now
        self.waiting.append(rows)
        self.held += rows.shape[0]

    def flush(self) -> None:
        if not self.waiting:
            return
        start = self.at
        logits = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.at, self.waiting, self.held = start + self.held, [], 0
        asked = logits[max(self.row - start, 0) :]
        for read in self.reads:
            kept = self.kept[read]
            if read.what is What.LOGITS:
                kept.append(asked)
            elif read.what is What.TOP_K:
                kept.append(asked.log_softmax(-1).topk(min(read.k, logits.shape[-1]), -1))
            elif read.what is What.PROBS:
                # the rows that tokens were drawn from are in ``drawn``
                before = asked[: max(self.last - max(start, self.row), 0)] if self.draws else asked
                kept.append(probabilities(before, self.query.sampling))
            elif self.query.parents is not None:
                kept.append(
                    log_probabilities(logits[max(self.last - start, 0) :], read.temperature)
                )
            else:
                own = logits[max(self.last - start, 0) :]
                j = max(start - self.last, 0)
                ids = self._ids(self.tokens[j : j + len(own)])
                rows = log_probabilities(own[: len(ids)], read.temperature)
                kept.append(rows.gather(-1, ids[:, None])[:, 0])

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(list(tokens), dtype=torch.long, device=self.empty.device)

    def value(self, read: Read, end: int) -> Any:
        """Return the value of a read over the rows before index ``end``."""
        kept, count = self.kept[read], max(end - self.row, 0)
        if read.what is What.LOGPROBS:
            if not kept:
                return self.empty[0, :0]
            if self.query.parents is None:
                return torch.cat(kept)
            rows = torch.cat(kept)[self._ids([p + 1 for p in self.query.parents])]
            return rows.gather(-1, self._ids(self.tokens)[:, None])[:, 0]
        if read.what is What.TOP_K:
            values, ids = (torch.cat(part)[:count] for part in zip(*kept, strict=True))
            return ids, values
        drawn = [p[None] for p in self.drawn] if read.what is What.PROBS else []
        parts = [*kept, *drawn]
        rows = parts[0] if len(parts) == 1 else torch.cat([self.empty, *parts])
        return rows if len(rows) == count else rows[:count]
