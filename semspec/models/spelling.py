"""Text of tokens as they come: never half a character, and each space where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

HALF = "\N{REPLACEMENT CHARACTER}"  # what a decoder returns for half a character


class Spelling:
    """Decodes tokens as they come: spaces and characters can depend on the tokens before."""

    WINDOW = 8  # tokens that a piece can depend on
    MOST = 32  # tokens decoded again for every piece: few, so that the whole stays linear

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._before: list[int] = []
        self._shown = 0  # characters of their text
        self._pending: list[int] = []  # ends in half a character
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
            self._waited += 1  # not for ever: a model may write broken characters
            return ""
        return self.take(tokens, text)

    def flush(self, tokens: Sequence[int] = ()) -> str:
        """Return all that is left, with ``tokens`` behind it, whole characters or not."""
        return self.take(tokens, self.peek(tokens))

    def take(self, tokens: Sequence[int], text: str) -> str:
        """Add tokens of which ``peek`` has said ``text``; return it."""
        self._before += [*self._pending, *tokens]
        self._shown += len(text)
        if len(self._before) > self.MOST:
            self._before = self._before[-self.WINDOW :]
            self._shown = len(self._decode(self._before))
        self._pending, self._waited = [], 0
        return text
