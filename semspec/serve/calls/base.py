"""Tools, calls, and what the formats (forms) in which models write calls share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from semspec.types import Grammar

_WHITE_SPACE = {
    "max_whitespace_cnt": 1
}  # in a row: some models write endless white space if the grammar allows it
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None  # a JSON schema; None: no parameters
    strict: bool = False  # a call whose arguments do not fit the schema counts as text

    @property
    def shown(self) -> dict[str, Any]:
        """The tool in the format that chat templates take."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        function = {name: value for name, value in told.items() if value is not None}
        return {"type": "function", "function": function}

    @property
    def schema(self) -> Mapping[str, Any]:
        return NO_PARAMETERS if self.parameters is None else self.parameters


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model has made."""

    name: str
    arguments: str  # a JSON object
    id: str = ""  # set for calls in earlier turns

    def told(self, arguments: Any) -> dict[str, Any]:
        """Return the call in a message's format, with the given arguments (text or an object)."""
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


Offered = Mapping[str, Callable[[Any], bool]]
"""By name, a function that tells whether a tool accepts given arguments."""
Piece = str | Call
"""A part of an answer: text or a call."""


class CallReader(Protocol):
    """Finds the calls in an answer while it is written.

    The result does not depend on how the answer is divided into pieces. A call is returned when it is complete; malformed
    calls, and calls of functions that were not offered, stay text. White space around calls is dropped.
    """

    def feed(self, text: str) -> list[Piece]:
        """Return the text and calls that are certain after some more text."""
        ...

    def flush(self) -> list[Piece]:
        """Return what was held back; called when no more text comes."""
        ...


class Form(Protocol):
    """A format in which models write calls."""

    def reader(self, offered: Offered) -> CallReader:
        """Return a reader that finds calls of the offered functions in an answer."""
        ...

    def turn(self, text: str, calls: Sequence[Call]) -> dict[str, Any]:
        """Return an assistant's turn with calls, as the templates of such models take it."""
        ...

    def grammar(self, tools: Sequence[Tool], several: bool) -> Grammar:
        """Return the grammar of an answer that is one call of these tools, or several calls."""
        ...


class Scan:
    """Follows JSON text character by character: inside a string or not, and how deeply nested."""

    def __init__(self) -> None:
        self.quoted, self.depth = False, 0
        self._escaped = False

    def feed(self, character: str) -> bool:
        """Read a character; return False if no JSON can have it here."""
        if not self.quoted:
            self.quoted = character == '"'
            self.depth += (character in "{[") - (character in "}]")
            return True
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self.quoted = False
        return character >= " "


class Tagged:
    """A CallReader for calls between two tags, with free text around them."""

    def __init__(
        self,
        opening: str,
        closing: str,
        begins: str,
        read: Callable[[str], Call | None],
        fillers: Sequence[str] = (),
    ) -> None:
        """``begins``: the start of every text between the tags; ``read`` parses such a text into a call.

        ``fillers``: tags without meaning that may surround calls, besides white space.
        """
        self._opening, self._closing, self._begins = opening, closing, begins
        self._read_call, self._fillers = read, tuple(fillers)
        self._held = ""  # text that may belong to a call, and white space and fillers before it
        self._body: int | None = (
            None  # where the text after an opening tag begins in _held; None: in free text
        )
        self._at, self._scan = 0, Scan()  # how far the body was scanned
        self._behind = False  # a call came last

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        found: list[Piece] = []
        while self._goes_on(found):
            pass
        return joined(found)

    def flush(self) -> list[Piece]:
        found: list[Piece] = []
        self._tell(len(self._held), found)
        self._body = None
        return found

    def _goes_on(self, found: list[Piece]) -> bool:
        """Read one more text or call; return False if that needs more input."""
        return self._read_text(found) if self._body is None else self._read_body(self._body, found)

    def _read_text(self, found: list[Piece]) -> bool:
        held = self._held
        at = held.find(self._opening)
        end = at if at >= 0 else len(held) - overlap(held, (self._opening, *self._fillers))
        end = self._trimmed(held, end)
        self._tell(end, found)
        if at < 0:
            return False
        self._body = self._at = at - end + len(self._opening)
        self._scan = Scan()
        return True

    def _trimmed(self, text: str, end: int) -> int:
        """Return where the white space and fillers at the end of a text begin."""
        while True:
            end = len(text[:end].rstrip())
            filler = next((one for one in self._fillers if text.endswith(one, 0, end)), None)
            if filler is None:
                return end
            end -= len(filler)

    def _read_body(self, body: int, found: list[Piece]) -> bool:
        held, scan = self._held, self._scan
        start = held[body : body + 64].lstrip()
        if not (start.startswith(self._begins) or self._begins.startswith(start)):
            return self._is_text(body, found)
        tags = self._opening, self._closing
        while self._at < len(held):
            at = self._at
            if not scan.quoted and held[at] == "<":
                if held.startswith(self._closing, at):
                    return self._end(body, at, found)
                if held.startswith(self._opening, at):
                    return self._is_text(at, found)
                rest = held[at : at + max(map(len, tags))]
                if any(tag.startswith(rest) for tag in tags):
                    return False
            if not scan.feed(held[at]):
                return self._is_text(at, found)
            self._at += 1
        return False

    def _end(self, body: int, at: int, found: list[Piece]) -> bool:
        end = at + len(self._closing)
        call = self._read_call(self._held[body:at])
        if call is None:
            return self._is_text(end, found)
        found.append(call)
        self._held, self._body, self._behind = self._held[end:], None, True
        return True

    def _is_text(self, end: int, found: list[Piece]) -> bool:
        """Treat the held text up to ``end`` as text, because it is no call."""
        self._body = None
        self._tell(end, found)
        return True

    def _tell(self, end: int, found: list[Piece]) -> None:
        text, self._held = self._held[:end], self._held[end:]
        if self._behind:
            text = self._without_fillers(text)
            self._behind = not text
        if text:
            found.append(text)

    def _without_fillers(self, text: str) -> str:
        text = text.lstrip()
        while filler := next((one for one in self._fillers if text.startswith(one)), None):
            text = text[len(filler) :].lstrip()
        return text


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join consecutive texts."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def overlap(text: str, wanted: Sequence[str]) -> int:
    """Return the length of the longest suffix of a text that is a proper prefix of one of ``wanted``."""
    longest = max((len(one) for one in wanted), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[-length:]) for one in wanted):
            return length
    return 0


def call_of(body: str, offered: Offered) -> Call | None:
    """Parse a JSON object with name and arguments into a call; return None if it is no valid call."""
    found = loaded(body)
    if not isinstance(found, dict):
        return None
    keys = [key for key in ("arguments", "parameters") if key in found]
    if len(keys) > 1:
        return None
    return call(found.get("name"), found[keys[0]] if keys else {}, offered)


def call(name: Any, arguments: Any, offered: Offered) -> Call | None:
    """Return the call of an offered function; None if it is not offered or does not accept the arguments."""
    if not isinstance(name, str) or name not in offered:
        return None
    if not isinstance(arguments, dict) or not offered[name](arguments):
        return None
    try:
        told = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        told.encode()  # raises for half a surrogate pair
    except (ValueError, RecursionError):
        return None
    return Call(name, told)


def loaded(text: str) -> Any:
    """Parse JSON; return None if it is malformed."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def held(
    tools: Sequence[Tool], begin: str, end: str, separator: str, several: bool
) -> dict[str, Any]:
    """Return the part of a structural tag for one call, or several; ``{}`` in ``begin`` stands for the tool's name."""
    tags = [
        {
            "type": "tag",
            "begin": begin.replace("{}", tool.name),
            "content": {"type": "json_schema", "json_schema": dict(tool.schema), **_WHITE_SPACE},
            "end": end,
        }
        for tool in tools
    ]
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def structural(part: Mapping[str, Any]) -> Grammar:
    return Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": part}))
