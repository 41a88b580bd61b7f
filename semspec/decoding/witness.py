"""Lets drafters watch: what they want to read rides on passes that the target does anyway.

A watcher asks for no pass of its own. Its reads join every query that scores a draft or lets the
target write, and once the context has been extended it is given the rows of the tokens that are
really there: of a chain as far as it was followed, of a tree along its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from semspec.decoding.trim import along
from semspec.protocols import DraftSession, Plan
from semspec.types import Answer, Context, Draft, Query, Read, Seen

T = TypeVar("T")


class Witness:
    """The watchers of one problem, and the rows that wait for them."""

    def __init__(self, sessions: Sequence[DraftSession]) -> None:
        self.watchers = [session for session in sessions if session.watches]
        wanted = [read for session in self.watchers for read in session.watches]
        self.reads: tuple[Read, ...] = tuple(dict.fromkeys(wanted))
        self._scored: tuple[Draft, int, Answer] | None = None

    def joined(self, query: Query) -> Query:
        """The query, reading for the watchers as well."""
        query.reads += tuple(read for read in self.reads if read not in query.reads)
        return query

    def judging(self, plan: Plan[T], context: Context, draft: Draft) -> Plan[T]:
        """Runs a rule's plan through; the pass over the draft reads for the watchers, too."""
        self._scored = None
        if not self.reads:
            return (yield from plan)
        try:
            asked = next(plan)
            while True:
                queries = asked if isinstance(asked, tuple) else (asked,)
                over = next((i for i, q in enumerate(queries) if _scores(q, context, draft)), None)
                if over is not None:
                    self.joined(queries[over])
                told = yield asked
                if over is not None:
                    answer = told[over] if isinstance(asked, tuple) else told
                    self._scored = (draft, len(context), answer)
                asked = plan.send(told)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def settle(self, context: Context) -> None:
        """After the context was extended: hands over the rows along the way that it took."""
        if self._scored is None:
            return
        (draft, root, answer), self._scored = self._scored, None
        rows = [0, *(node + 1 for node in followed(draft, context.tokens[root:]))]
        chain = rows == list(range(len(rows)))
        picked = slice(len(rows)) if chain else rows
        values = {read: _rows(answer[read], picked) for read in self.reads}
        self._show(Seen(root - 1, len(rows), values))

    def wrote(self, start: int, answer: Answer) -> None:
        """The target wrote by itself, from position ``start`` on: each row is what was drawn from."""
        if self.reads and answer.tokens:
            values = {read: answer[read] for read in self.reads}
            self._show(Seen(start - 1, len(answer.tokens), values))

    def _show(self, seen: Seen) -> None:
        for session in self.watchers:
            session.see(seen)


def _scores(query: Query, context: Context, draft: Draft) -> bool:
    return (
        query.model == "target"
        and query.context is context
        and query.generate is None
        and query.rows_from is None
        and list(query.tokens) == draft.tokens
        and query.parents == draft.parents
    )


def followed(draft: Draft, tokens: Sequence[int]) -> list[int]:
    """The drafted nodes that the context went along, whoever wrote its tokens."""
    if draft.parents is not None:
        return along(draft.tokens, draft.parents, tokens)
    path: list[int] = []
    for i, (drafted, token) in enumerate(zip(draft.tokens, tokens, strict=False)):
        if drafted != token:
            break
        path.append(i)
    return path


def _rows(value: Any, picked: Any) -> Any:
    return tuple(part[picked] for part in value) if isinstance(value, tuple) else value[picked]
