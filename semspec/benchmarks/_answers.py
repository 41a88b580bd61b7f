"""Finding the final answer in a solution."""

from __future__ import annotations


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
