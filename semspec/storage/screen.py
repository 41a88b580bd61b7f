"""Print foreign text (questions, names, paths, errors that quote them) safely on a terminal.

All output passes through ``visible``, so that no text can control the terminal: ``echo`` prints a line, ``LOG`` logs
one, and ``terminal.Screen`` prints what rich renders. ``tests/unit/test_screen.py`` checks that the package prints in no
other way.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from semspec.errors import without_passwords

PICTURES = 0x2400  # first picture of a control character: U+241B is that of escape
DELETE = "\x7f"
JOINERS = "\u200c\u200d"  # needed by some scripts and emoji
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def visible(text: str, newline: str = "\n") -> str:
    """Return the text without anything that could control a terminal.

    Control characters become pictures of themselves; bidirectional overrides, lone surrogates and other invisible
    characters become U+FFFD. A tab becomes four spaces, a line break ``newline``: give a space to keep the text
    on one line.
    """
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    shown = "".join(c if c.isprintable() or c in JOINERS else _picture(c) for c in text)
    return shown if newline == "\n" else shown.replace("\n", newline)


def _picture(character: str) -> str:
    if character.isspace():
        return character if character == "\n" else " "
    code = 0x21 if character == DELETE else ord(character)
    return chr(PICTURES + code) if code <= 0x21 else UNKNOWN


def echo(
    text: str, *, newline: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Print a line; characters that the encoding lacks become question marks."""
    file = file or sys.stdout
    encoding = getattr(file, "encoding", None) or "utf-8"
    shown = visible(text, newline).encode(encoding, "replace").decode(encoding)
    print(shown, file=file, flush=flush)


def complain(error: object) -> None:
    """Print an error as one line on standard error; it may quote foreign text with line breaks."""
    echo(f"semspec: {without_passwords(str(error))}", newline=" ", file=sys.stderr)


def last_line(text: str) -> SystemExit:
    """Return a SystemExit that ends a foreign program with one line on standard error."""
    return SystemExit(visible(text, newline=" "))


def _sanitise(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage(), newline=" "), ()
    return True


LOG = logging.getLogger("semspec")
LOG.addFilter(_sanitise)
