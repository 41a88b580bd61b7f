r"""A unit ends with an empty line: the step of SemanticSpec and SpecReason.

The delimiter is two newlines (carriage returns between them are ignored), in one token or over several.
There is no look-ahead, because generation stops exactly where a unit ends, and looking ahead would cost a
token per unit:

* the token that completes the delimiter ends the unit, even if text follows in the same token;
* further newlines belong to the *next* unit, and a unit does not end before it has something besides
    whitespace. So no unit is pure whitespace, except ``cap`` tokens of it;
* only adjacent newlines count: ``"\n  \n"`` is not a delimiter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semspec.decoding.units import check_cap
from semspec.protocols import Splitter
from semspec.registry import register
from semspec.types import Boundary, Stops


class ParagraphBoundary:
    """Counts the newlines at the end of the text so far, in constant memory."""

    def __init__(self, piece: Callable[[int], str], cap: int) -> None:
        self._piece = piece
        self._cap = check_cap(cap)
        self._start()

    @property
    def stops(self) -> Stops:
        return Stops(texts=("\n\n", "\n\r\n"), cap=self._cap)

    def _start(self) -> None:
        self._count = 0  # tokens of this unit
        self._newlines = 0  # at the end of the text so far
        self._text = False  # the unit has something besides whitespace

    def feed(self, token: int) -> Literal[0] | None:
        self._count += 1
        text = self._piece(token)
        # in the middle of a line, which is nearly always, only a newline changes anything
        inside = self._text and not self._newlines and "\n" not in text
        if (not inside and self._delimited(text)) or self._count >= self._cap:
            self._start()
            return 0
        return None

    def _delimited(self, text: str) -> bool:
        for char in text:
            if char == "\n":
                self._newlines += 1
                if self._newlines >= 2 and self._text:
                    return True
            elif char != "\r":
                self._newlines = 0
                self._text = self._text or not char.isspace()
        return False


@register("split", "paragraph")
@dataclass(frozen=True, kw_only=True)
class Paragraph(Splitter):
    """A unit ends with an empty line (two newlines)."""

    def open(self, piece: Callable[[int], str], cap: int) -> Boundary:
        return ParagraphBoundary(piece, cap)
