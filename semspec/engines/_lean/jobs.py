"""One query in progress."""

from __future__ import annotations

from torch import Tensor

from semspec.decoding.trim import depths
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model
from semspec.engines._lean.reader import Reader
from semspec.engines._lean.session import Session
from semspec.errors import UserError
from semspec.types import Answer, Query


class Job:
    def __init__(self, query: Query, session: Session, model: Model) -> None:
        self.query, self.session, self.answer = query, session, Answer()
        self.context = len(query.context)
        self.total = self.context + len(query.tokens)
        self.depths = None if query.parents is None else depths(query.parents)
        self.reader = Reader(query, self.answer, model.spec, model.weights.embed)
        if query.passes:
            self._check_room(model.spec.context_limit)
        self.todo: list[int] = []
        self.logits: Tensor | None = None  # [vocabulary] to draw the next token from

    def _check_room(self, limit: int) -> None:
        deepest = self.context + (max(self.depths) if self.depths else len(self.query.tokens))
        ask = self.query.generate
        if not self.context:
            raise UserError("the prompt is empty: give at least one token")
        if ask and self.query.parents is not None:
            raise UserError("a query can score a tree or generate, not both")
        if deepest + (ask is not None) > limit:
            raise UserError(
                f"{deepest} tokens exceed the context limit of {limit}: shorten the prompt"
                " or the budget, or raise max_context if the model allows"
            )
        self.room = limit - deepest  # the most tokens that can be generated

    def begin(self, cache: Cache) -> None:
        """Crop the session to the reusable part of the prefix, and list the tokens that must be fed."""
        query, session = self.query, self.session
        if query.parents is None:
            kept = session.match(query.context, query.tokens, cache)
        else:
            kept = session.match_tree(query.context, query.tokens, query.parents, cache)
        kept = min(kept, self.reader.needed_from)
        session.crop(kept)
        self.answer.cached = kept
        self.todo = query.context.tokens[kept:]
        self.todo.extend(query.tokens[max(kept - self.context, 0) :])

    def has_nodes(self, end: int) -> bool:
        """Return whether any token before index ``end`` is a tree node."""
        return self.query.parents is not None and end > self.context

    def positions(self, start: int, count: int) -> list[int]:
        """Return the positions of ``count`` tokens from index ``start`` on; a tree node's is root + depth."""
        if self.depths is None:
            return list(range(start, start + count))
        root, indices = self.context - 1, range(start, start + count)
        return [i if i <= root else root + self.depths[i - self.context] for i in indices]
