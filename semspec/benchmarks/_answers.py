"""Finding the final answer in a solution."""

from __future__ import annotations

import re
from collections.abc import Sequence

LETTERS = "ABCDEFGHIJKLMNOP"
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"\(?\s*([A-P])\s*(?:[).:\s].*)?", re.DOTALL)
_SAID = re.compile(r"(?i:\banswer(?:\s+is)?\s*:?)\s*\**\s*\(?([A-P])\b(?!['’])")


def after_thinking(text: str) -> str:
    """What follows the last ``</think>``; nothing where thinking never ended."""
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if "<think>" in text else text


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` whose braces balance."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        depth, first = 0, start + len("\\boxed")
        for i in range(first, len(text)):
            if text[i] in "{}" and text[i - 1] != "\\":
                depth += 1 if text[i] == "{" else -1
                if depth == 0:
                    return text[first + 1 : i]
        end = start
    return None


def chosen_letter(text: str, options: Sequence[str]) -> str | None:
    """The letter of a multiple choice: boxed (or an option's text, boxed), else "the answer is C"."""
    letters = LETTERS[: len(options)]
    boxed = last_boxed(text)
    if boxed is None:
        said = [letter for letter in _SAID.findall(text) if letter in letters]
        return said[-1] if said else None
    boxed = _STYLE.sub(lambda m: m[1], boxed).strip().strip("$").strip()
    known = {" ".join(option.split()): letters[i] for i, option in enumerate(options)}
    if " ".join(boxed.split()) in known:
        return known[" ".join(boxed.split())]
    found = _LETTER.fullmatch(boxed)
    return found[1] if found and found[1] in letters else None
