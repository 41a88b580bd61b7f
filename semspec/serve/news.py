"""What a choice reports while it is written: text, steps, log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from semspec.serve.reading import Said

Author = Literal[
    "draft", "target", "server"
]  # the server closes a thinking that has run out of its budget


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was decided."""

    author: Author
    accepted: bool
    tokens: int
    score: float | None = None
    text: str = ""  # of a rejected step, which stands nowhere else
    drafted: int | None = (
        None  # of a draft by tokens: how many it had, of which ``tokens`` are kept
    )


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability under the target, at temperature 1, and those of its likeliest rivals."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class News:
    """What has happened since the last news."""

    items: list[tuple[Author, Said] | Step] = field(
        default_factory=list
    )  # in the order of the text
    logprobs: list[Logprob] = field(default_factory=list)
    tokens: int = 0  # so far
    ended: bool = False
