"""Decode a stream of tokens: never half a character, and spaces where they belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HALF = "\N{REPLACEMENT CHARACTER}"  # what a decoder returns for half a character


class Spelling:
    """Decodes tokens as they come; spaces and characters can depend on earlier tokens."""

    WINDOW = 8  # earlier tokens that a piece can depend on
    MOST = 32  # most tokens decoded again for every piece, so that the total stays linear

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._before: list[int] = []
        self._shown = 0  # number of characters of the text of ``_before``
        self._pending: list[int] = []  # tokens that end in half a character
        self._waited = 0

    def peek(self, tokens: Sequence[int]) -> str:
        """Return the text that ``tokens`` would add."""
        return self._decode([*self._before, *self._pending, *tokens])[self._shown :]

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens add; "" while they end in half a character."""
        if not tokens:
            return ""
        text = self.peek(tokens)
        if text.endswith(HALF) and self._waited < self.WINDOW:
            self._pending += tokens
            self._waited += 1  # wait a limited time, because a model may write broken characters
            return ""
        return self.take(tokens, text)

    def flush(self, tokens: Sequence[int] = ()) -> str:
        """Return all remaining text plus that of ``tokens``, even if it ends in half a character."""
        return self.take(tokens, self.peek(tokens))

    def take(self, tokens: Sequence[int], text: str) -> str:
        """Commit tokens with the ``text`` that ``peek`` returned; return it."""
        self._before += [*self._pending, *tokens]
        self._shown += len(text)
        if len(self._before) > self.MOST:
            self._before = self._before[-self.WINDOW :]
            self._shown = len(self._decode(self._before))
        self._pending, self._waited = [], 0
        return text
