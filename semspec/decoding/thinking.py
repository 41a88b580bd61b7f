"""Detect the end of a text's thinking, after which only the target may write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semspec.models.text import CLOSE


class Thinking:
    """Watches a text for the tag that closes the thinking, which may span several tokens."""

    def __init__(self, piece: Callable[[int], str], tag: str = CLOSE) -> None:
        self._piece, self._tag = piece, tag
        self._tail = ""
        self.over = False

    def feed(self, tokens: Sequence[int]) -> None:
        """Scan committed tokens."""
        if not self.over:
            self._tail, self.over = self._scan(self._tail, tokens)[1:]

    def closes_at(self, tokens: Sequence[int]) -> int | None:
        """Return how many of the next tokens it takes to close the thinking; None if they do not."""
        at, _, over = self._scan(self._tail, tokens)
        return at if over and not self.over else None

    def closed_before(self, tokens: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Mark each node of a tree whose path from the root has passed the end of the thinking."""
        states: list[tuple[str, bool]] = []  # after each node
        before = []
        for token, parent in zip(tokens, parents, strict=True):
            tail, over = states[parent] if parent >= 0 else (self._tail, self.over)
            before.append(over)
            states.append(("", True) if over else self._scan(tail, [token])[1:])
        return before

    def _scan(self, tail: str, tokens: Sequence[int]) -> tuple[int, str, bool]:
        for count, token in enumerate(tokens, start=1):
            tail += self._piece(token)
            if self._tag in tail:
                return count, "", True
            tail = tail[-len(self._tag) :]
        return len(tokens), tail, False
