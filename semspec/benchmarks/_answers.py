"""Find the final answer in a solution."""

from __future__ import annotations

import re
from collections.abc import Sequence

LETTERS = "ABCDEFGHIJKLMNOP"
_BOX = re.compile(
    r"\\boxed(?:\s*(?=\{)"
    # without braces: numbers, commands and the like up to a space, but no words ("in \boxed form")
    r"|(?:[ \t]+|(?=[\d\\]))(?=[^\w\s]*+\w)(?![^\w\\]?[^\W\d_]{2})"
    r"(?P<bare>(?:\\(?:[A-Za-z]+|[$%])(?:\{[^{}]*\})*|[^\s\\{}$])+))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # skips escaped characters
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"\(?\s*([A-P])\s*(?:[).:\s].*)?", re.DOTALL)
# possessive: backtracking over a long run of spaces takes minutes
_NAMED = re.compile(r"(?i:\banswer(?:\s++is)?+\s*+:?+)\s*+\**+\s*+\(?([A-P])\b(?!['’])")


def after_thinking(text: str) -> str:
    """Return what follows the last ``</think>``, or "" if thinking never ended."""
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if "<think>" in text else text


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` whose braces balance, or ``\boxed 4``."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            closed[opened.pop()] = brace.start()
    for box in reversed([*_BOX.finditer(text)]):
        if box["bare"] is not None:
            return box["bare"].rstrip(".,;:")
        if box.end() in closed:
            return text[box.end() + 1 : closed[box.end()]]
    return None


def chosen_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the chosen letter: boxed (or an option's text, boxed), else from "the answer is C"."""
    letters = LETTERS[: len(options)]
    boxed = last_boxed(text)
    if boxed is None:
        named = [letter for letter in _NAMED.findall(text) if letter in letters]
        return named[-1] if named else None
    boxed = _STYLE.sub(lambda m: m[1], boxed).strip().strip("$").strip()
    known = {" ".join(option.split()): letters[i] for i, option in enumerate(options)}
    found = _LETTER.fullmatch(boxed)
    lettered = found[1] if found and found[1] in letters else None
    return known.get(" ".join(boxed.split()), lettered)
