"""Tools and their calls: what every form in which models write calls has, and shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from semspec.types import Grammar

_WHITE_SPACE = {"max_whitespace_cnt": 1}  # at a time: some models write nothing else, once they may
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None  # a JSON schema; None: it takes none
    strict: bool = False  # arguments that do not fit it make no call

    @property
    def shown(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
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
    id: str = ""  # of calls in earlier turns

    def told(self, arguments: Any) -> dict[str, Any]:
        """Return the call as a message has it, with arguments as text or as an object."""
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


Offered = Mapping[str, Callable[[Any], bool]]
"""What may be called: by name, whether arguments are taken."""
Piece = str | Call
"""What an answer consists of."""


class CallReader(Protocol):
    """Finds the calls in an answer as it is written.

    How the answer is divided into texts changes nothing. A call is told once it is complete; what is malformed, or calls a
    function that was not offered, stays text. White space around calls is left out.
    """

    def feed(self, text: str) -> list[Piece]:
        """Return what is known after some more text."""
        ...

    def flush(self) -> list[Piece]:
        """Return all that is left when nothing more comes."""
        ...


class Form(Protocol):
    """A form in which models write calls."""

    def reader(self, offered: Offered) -> CallReader:
        """Return what finds the calls of these functions in an answer."""
        ...

    def turn(self, text: str, calls: Sequence[Call]) -> dict[str, Any]:
        """Return an assistant's turn that made calls, as the templates of such models take it."""
        ...

    def grammar(self, tools: Sequence[Tool], several: bool) -> Grammar:
        """Return what holds an answer to one call of these tools, or to one and more."""
        ...


class Scan:
    """Follows JSON text character by character: is it in a string, and how deep?"""

    def __init__(self) -> None:
        self.quoted, self.depth = False, 0
        self._escaped = False

    def feed(self, character: str) -> bool:
        """Take a character; return False where it cannot stand there in any JSON."""
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
    """A CallReader of calls that stand between two tags, with free text before and behind them."""

    def __init__(
        self,
        opening: str,
        closing: str,
        begins: str,
        read: Callable[[str], Call | None],
        fillers: Sequence[str] = (),
    ) -> None:
        """``begins``: how what stands between the tags begins; ``read`` returns the call that it is.

        ``fillers``: what may stand around calls, beside white space, and says nothing.
        """
        self._opening, self._closing, self._begins = opening, closing, begins
        self._read_call, self._fillers = read, tuple(fillers)
        self._held = ""  # that may belong to a call, with what is left out before it
        self._body: int | None = (
            None  # where what follows an opening tag begins in it; None: free text
        )
        self._at, self._scan = 0, Scan()  # how far it was looked at
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
        """Read one more text or call; return False where more text is needed."""
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
        """Return where what says nothing begins at the end of a text."""
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
        """Take for text what was held up to here: it is no call."""
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
    """Return pieces with texts that follow each other made one."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def overlap(text: str, wanted: Sequence[str]) -> int:
    """Return the length of the longest end of a text with which one of ``wanted`` begins."""
    longest = max((len(one) for one in wanted), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[-length:]) for one in wanted):
            return length
    return 0


def call_of(body: str, offered: Offered) -> Call | None:
    """Return the call that a JSON object with name and arguments is; None: it is none."""
    found = loaded(body)
    if not isinstance(found, dict):
        return None
    keys = [key for key in ("arguments", "parameters") if key in found]
    if len(keys) > 1:
        return None
    return call(found.get("name"), found[keys[0]] if keys else {}, offered)


def call(name: Any, arguments: Any, offered: Offered) -> Call | None:
    """Return the call of a name with arguments that were read; None where it is none of what is offered."""
    if not isinstance(name, str) or name not in offered:
        return None
    if not isinstance(arguments, dict) or not offered[name](arguments):
        return None
    try:
        told = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        told.encode()  # half a character cannot
    except (ValueError, RecursionError):
        return None
    return Call(name, told)


def loaded(text: str) -> Any:
    """Return what a JSON text says; None where it is none."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def held(
    tools: Sequence[Tool], begin: str, end: str, separator: str, several: bool
) -> dict[str, Any]:
    """Return the part of a structural tag that is one call, or several: ``{}`` in ``begin`` is the tool's name."""
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
