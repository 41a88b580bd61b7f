"""What a choice reports while it is written: text, steps, log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from semspec.serve.reading import Said

Author = Literal["draft", "target", "server"]
"""Who wrote a text; the server writes the words that close a thinking early."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was accepted or rejected."""

    author: Author
    accepted: bool
    tokens: int
    score: float | None = None
    text: str = ""  # of a rejected step; the answer does not contain it
    # of a draft by tokens: its length, of which ``tokens`` were accepted
    drafted: int | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability under the target at temperature 1, with the most likely alternatives."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class News:
    """What one choice has reported since the last look."""

    # in the order of the text
    items: list[tuple[Author, Said] | Step] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    tokens: int = 0  # of the whole answer so far
    ended: bool = False
