"""Add the reads of watching drafters to passes that the target makes anyway.

A watcher's reads join every query that scores a draft or lets the target write. After the context was
extended, the watcher gets the rows of the committed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from semspec.decoding.plans import tapped
from semspec.decoding.trim import along
from semspec.deferred import torch
from semspec.protocols import DraftSession, Plan
from semspec.types import Answer, Context, Draft, Query, Read, Seen

T = TypeVar("T")


class Witness:
    """The watchers of one problem, and the rows kept for them."""

    def __init__(self, context: Context, sessions: Sequence[DraftSession]) -> None:
        self.context = context
        self.watchers = [session for session in sessions if session.watches]
        wanted = [read for session in self.watchers for read in session.watches]
        self.reads: tuple[Read, ...] = tuple(dict.fromkeys(wanted))
        self._scored: tuple[Draft, int, Answer] | None = None
        self.resting = False  # nothing is read while the target writes; watchers ask for it later

    def joined(self, query: Query) -> Query:
        """Add the watchers' reads to a query."""
        if not self.resting:
            query.reads += tuple(read for read in self.reads if read not in query.reads)
        return query

    def judging(self, plan: Plan[T], draft: Draft) -> Plan[T]:
        """Run a rule's plan, and read for the watchers in its pass over the draft."""
        self._scored, self.resting = None, False
        if not self.reads:
            return plan

        def asking(queries: Sequence[Query]) -> None:
            for query in [query for query in queries if self._scores(query, draft)][:1]:
                self.joined(query)

        def answered(queries: Sequence[Query], answers: Sequence[Answer]) -> None:
            both = zip(queries, answers, strict=True)
            for answer in [answer for query, answer in both if self._scores(query, draft)][:1]:
                self._scored = (draft, len(self.context), answer)

        return tapped(plan, asking, answered)

    def _scores(self, query: Query, draft: Draft) -> bool:
        asked = (query.model, query.generate, query.rows_from, list(query.tokens), query.parents)
        expected = ("target", None, None, draft.tokens, draft.parents)
        return query.context is self.context and asked == expected

    def settle(self) -> None:
        """Give the watchers the rows along the path that the context took since the draft was judged."""
        if self._scored is None:
            return
        (draft, root, answer), self._scored = self._scored, None
        rows = [0, *(node + 1 for node in followed(draft, self.context.tokens[root:]))]
        chain = rows == list(range(len(rows)))
        picked = slice(len(rows)) if chain else rows
        values = {read: _rows(answer[read], picked) for read in self.reads}
        self._show(Seen(root - 1, len(rows), values))

    def wrote(self, answer: Answer) -> None:
        """Give the watchers the rows that the target drew the context's last tokens from."""
        count = len(answer.tokens)
        if self.reads and count and not self.resting:
            values = {read: answer[read] for read in self.reads}
            self._show(Seen(len(self.context) - count - 1, count, values))

    def _show(self, seen: Seen) -> None:
        for session in self.watchers:
            session.see(seen)


def followed(draft: Draft, tokens: Sequence[int]) -> list[int]:
    """Return the drafted nodes that the context followed, whoever wrote its tokens."""
    chain = range(-1, len(draft.tokens) - 1)
    return along(draft.tokens, chain if draft.parents is None else draft.parents, tokens)


def _rows(value: Any, picked: slice | list[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_rows(part, picked) for part in value)
    if value.is_cpu and isinstance(picked, list) and value.dtype is torch.float32:
        return torch.from_numpy(value.numpy()[picked])  # numpy's calls are cheaper
    return value[picked]
