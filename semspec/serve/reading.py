"""Decode a model's tokens for a client: separate thinking, answer and tool calls, find stop texts, wait for whole characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from semspec.models.spelling import HALF, Spelling
from semspec.models.text import CLOSE, OPEN
from semspec.serve.calls.base import Call, CallReader, overlap

Channel = Literal["reasoning", "content"]
Said = tuple[Channel, str] | Call


class Reader:
    """Decodes one choice token by token; text that may begin a tag or a stop text is held back until that is decided.

    ``opened``: the prompt has opened the thinking. Without ``chat`` there is no thinking: all text is content.
    Stop texts and ``calls`` are searched in the content only, so that they do not end the thinking. With ``one_call`` the
    text ends after the first call.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        opened: bool,
        chat: bool = True,
        stops: Sequence[str] = (),
        calls: CallReader | None = None,
        one_call: bool = False,
    ) -> None:
        self._spelling = Spelling(decode)
        self._state = ("thinks" if opened else "begins") if chat else "answers"
        self._stops = tuple(stops)
        self._calls, self._one_call = calls, one_call
        self._pending = ""
        self._stripping = chat  # drop white space before the next text
        self.thinking_tokens = 0
        self.stopped = False

    @property
    def thinks(self) -> bool:
        return self._state == "thinks"

    @property
    def begins(self) -> bool:
        """True while it is open whether the text begins with thinking."""
        return self._state == "begins"

    def feed(self, token: int) -> list[Said]:
        """Return the text and calls that a token adds."""
        if self.stopped:
            return []
        thought = self._state != "answers"
        self._pending += self._spelling.feed([token])
        said = self._read()
        if thought and (self.thinks or (self._state == "answers" and self._closed)):
            self.thinking_tokens += 1
        return said

    def feed_run(self, tokens: Sequence[int]) -> list[Said]:
        """Return the text and calls that tokens add, decoding them together if possible.

        If one of them may end the thinking or the text, or the last one ends in half a character, decode each half of
        them separately.
        """
        if len(tokens) < 2:
            return self.feed(tokens[0]) if tokens else []
        if not (self._state == "begins" or self._stops or self._one_call or "<" in self._pending):
            text = self._spelling.peek(tokens)
            if not (text.endswith(HALF) or (self.thinks and "<" in text)):
                self._pending += self._spelling.take(tokens, text)
                if self.thinks:
                    self.thinking_tokens += len(tokens)
                return self._read()
        half = len(tokens) // 2
        return [*self.feed_run(tokens[:half]), *self.feed_run(tokens[half:])]

    _closed = False  # by the last token

    def flush(self) -> list[Said]:
        """Return what was held back; call it when no more tokens come."""
        if self.stopped:
            return []
        self._pending += self._spelling.flush()
        said = self._read()
        if self._state == "begins":  # what looked like a tag was none
            self._state, self._stripping = "answers", False
            said += self._answered()
        rest, self._pending = self._pending, ""
        if self.stopped:
            return said
        if self._state == "thinks":
            rest = rest.rstrip()
        if self._stripping:
            rest = rest.lstrip()
        if self._state == "thinks":
            return [*said, *self._as("reasoning", rest)]
        return [*said, *self._content(rest, over=True)]

    def _as(self, channel: Channel, text: str) -> list[Said]:
        return [(channel, text)] if text else []

    def _content(self, text: str, over: bool = False) -> list[Said]:
        """Split a part of the answer into text and calls."""
        if self._calls is None:
            return self._as("content", text)
        said: list[Said] = []
        for piece in [*self._calls.feed(text), *(self._calls.flush() if over else ())]:
            said += [piece] if isinstance(piece, Call) else self._as("content", piece)
            if self._one_call and isinstance(piece, Call):
                self.stopped = True
                break
        return said

    def _read(self) -> list[Said]:
        said: list[Said] = []
        self._closed = False
        if self._state == "begins":
            begun = self._pending.lstrip()
            if begun.startswith(OPEN):
                self._state, self._pending = "thinks", begun[len(OPEN) :]
            elif not OPEN.startswith(begun):
                self._state, self._stripping = "answers", False
        if self._state == "thinks":
            said += self._thought()
        if self._state == "answers":
            said += self._answered()
        return said

    def _thought(self) -> list[Said]:
        text = self._pending.lstrip() if self._stripping else self._pending
        if text:
            self._stripping = False
        before, closed, after = text.partition(CLOSE)
        if closed:
            self._state, self._pending, self._stripping, self._closed = "answers", after, True, True
            return self._as("reasoning", before.rstrip())
        # hold back what may begin a tag, and white space until something follows
        ready = len(text) - overlap(text, (CLOSE,))
        ready = len(text[:ready].rstrip())
        self._pending = text[ready:]
        return self._as("reasoning", text[:ready])

    def _answered(self) -> list[Said]:
        text = self._pending.lstrip() if self._stripping else self._pending
        if text:
            self._stripping = False
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._pending = True, ""
            return self._content(text[: min(found)[0]], over=True)
        ready = len(text) - overlap(text, self._stops)
        self._pending = text[ready:]
        return self._content(text[:ready])
