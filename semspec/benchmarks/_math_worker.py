"""Decide if two answers mean the same, in a separate process that may be killed.

It reads one JSON line ``[gold, answer]`` at a time and writes ``true`` or ``false``. Some expressions
(``9^{9^{9^9}}``) keep sympy busy forever, and a thread cannot be stopped; the caller kills this
process instead. ``_grading.py`` starts it as a script, without semspec.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys

MEMORY = 4 << 30  # bytes; a runaway power uses up memory before time

_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[!,;: ]|\\q?quad(?![a-z])|~|\s+")
_PERCENT = re.compile(r"(?:\\?%|(?:\\text\s*\{\s*)?\bper\s?cent\b\s*+\}?+)\s*+$")
_BASED = re.compile(r"([0-9A-Fa-f]+)_(?:\{(\d+)\}|(\d))")
_PHRASE = re.compile(r"[^\W\d_]{2}+(?:[\s\-'.,]*+[^\W_]++)*+")


def same(gold: str, answer: str) -> bool:
    """Return True if ``answer`` means the same as ``gold``."""
    gold, answer = _trimmed(gold), _trimmed(answer)
    if not gold or not answer:
        return False
    if _plain(gold) == _plain(answer):
        return True
    if _says_words(gold):  # else "Evelyn" would be a product of six variables
        return _letters(gold) == _letters(answer)
    if (base := _BASED.fullmatch(_plain(gold))) is not None:
        return _same_digits(base, _plain(answer))
    gold_number, gold_is_percent = _without_percent(gold)
    number, is_percent = _without_percent(answer)
    if not gold_is_percent and not is_percent:
        return _equal(gold, answer)
    # Hydra wants antlr 4.9.3, with which math-verify reads 50\% as 50, so percentages are handled here. One
    # may be written as its number ("what percent" asks for 50) or as the fraction that it is.
    if _equal(gold_number, number):
        return True
    if gold_is_percent:
        return not is_percent and _equal(rf"\frac{{{gold_number}}}{{100}}", number)
    return _equal(gold_number, rf"\frac{{{number}}}{{100}}")


def _equal(gold: str, answer: str) -> bool:
    from math_verify import parse, verify

    # math-verify's own limits need signals and the main thread; the caller kills us instead
    parsed = [parse(f"${side}$", parsing_timeout=None) for side in (gold, answer)]
    return bool(verify(*parsed, timeout_seconds=None))  # gold first: the order matters


def _trimmed(text: str) -> str:
    text = text.strip().strip("$").strip()
    text = text.removeprefix("\\(").removesuffix("\\)").strip()
    return text[:-1].rstrip() if text.endswith((".", ",")) else text


def _plain(text: str) -> str:
    """Remove markup that changes only the appearance."""
    text = text.replace("\\$", "").replace("$", "").replace("\\left", "").replace("\\right", "")
    text = re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", text)
    text = _WORDS.sub(lambda m: m[1], text)
    return _SPACES.sub("", text)


def _without_percent(text: str) -> tuple[str, bool]:
    shorter = _PERCENT.sub("", text)
    return shorter.rstrip(" \\"), shorter != text


def _says_words(gold: str) -> bool:
    """Return True if the answer is a name or a phrase rather than a formula."""
    words = _WORDS.fullmatch(gold)
    return _PHRASE.fullmatch((words[1] if words else gold).strip()) is not None


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", _WORDS.sub(lambda m: m[1], text)).casefold()


def _same_digits(gold: re.Match[str], answer: str) -> bool:
    """Compare numbers in a base other than ten: the answer may omit the base, but not change it."""
    given = _BASED.fullmatch(answer)
    if given is None:
        return answer.casefold() == gold[1].casefold()
    return given[1].casefold() == gold[1].casefold() and (given[2] or given[3]) == (
        gold[2] or gold[3]
    )


def main() -> None:
    """Answer requests until the other side closes the pipe."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _equal("1", "1")  # imports sympy now, so that it does not count against the first limit
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # unread warnings would fill the pipe
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            verdict = same(gold, answer)
        except (MemoryError, RecursionError, ValueError, OverflowError):
            verdict = False  # too large to be meant as an answer
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
