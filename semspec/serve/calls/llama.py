"""Tool calls of Llama 3.1 and its successors: the whole answer is a JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semspec.registry import register
from semspec.serve.calls.base import (
    Call,
    CallReader,
    Offered,
    Piece,
    Scan,
    Tool,
    call_of,
    held,
    structural,
)
from semspec.types import Grammar

TAG = "<|python_tag|>"
SEPARATOR = ";"


@register("calls", "llama")
@dataclass(frozen=True, kw_only=True)
class Llama:
    """{"name": ..., "parameters": {...}} as the whole of an answer, as Llama 3.1 writes it."""

    def reader(self, offered: Offered) -> CallReader:
        return Bare(offered)

    def turn(self, text: str, calls: Sequence[Call]) -> dict[str, Any]:
        told = [call.told(json.loads(call.arguments)) for call in calls]
        return {"role": "assistant", "content": text, "tool_calls": told}

    def grammar(self, tools: Sequence[Tool], several: bool) -> Grammar:
        return structural(held(tools, '{"name": "{}", "parameters": ', "}", SEPARATOR, several))


class Bare:
    """A CallReader for answers that begin with a call, which others may follow; any other answer is text."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._held = ""
        self._called = False  # a call came last
        self._text = False  # the rest is text
        self._at: int | None = (
            None  # how far the current object was scanned; None: no object has begun
        )
        self._scan = Scan()

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._goes_on(found):
            pass
        return found

    def flush(self) -> list[Piece]:
        self._text = True
        return self._rest()

    def _rest(self) -> list[Piece]:
        text, self._held = self._held, ""
        if self._called:
            text = text.lstrip(f" \n\t\r{SEPARATOR}")
            self._called = not text
        return [text] if text else []

    def _goes_on(self, found: list[Piece]) -> bool:
        if self._text:
            found += self._rest()
            return False
        if self._at is None:
            return self._begins()
        return self._reads(found)

    def _begins(self) -> bool:
        """Find where an object begins; if something else comes, the rest is text."""
        start = self._held.lstrip()
        if self._called:
            start = start.lstrip(f" \n\t\r{SEPARATOR}")
        if start.startswith(TAG):
            start = start[len(TAG) :].lstrip()
        elif start and TAG.startswith(start):
            return False
        if not start:
            return False
        self._text = not start.startswith("{")
        self._at, self._scan = len(self._held) - len(start), Scan()
        return True

    def _reads(self, found: list[Piece]) -> bool:
        assert self._at is not None
        begun = self._at
        for at in range(begun, len(self._held)):
            self._at = at + 1
            if not self._scan.feed(self._held[at]):
                self._text = True
                return True
            if not self._scan.depth:
                call = call_of(self._held[self._held.index("{") : at + 1], self._offered)
                self._at, self._text = None, call is None
                if call is not None:
                    found.append(call)
                    self._held, self._called = self._held[at + 1 :], True
                return True
        return False
