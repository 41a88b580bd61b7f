"""A kit whose tokens are whole words, for traces worked out by hand."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from semspec.protocols import Kit, Plan
from semspec.splitters.paragraph import Paragraph
from semspec.splitters.sentence import Sentence
from semspec.types import Context, Draft, Query, Sampling

SPLITTERS = {"paragraph": Paragraph, "sentence": Sentence}


class Words:
    """Gives each word (with the space before it) and each empty line an id when it first appears."""

    stop = "<stop>"

    def __init__(self) -> None:
        self.pieces = [self.stop]

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in re.findall(r"<stop>|\n\n|\s?[^\s<]+", text):
            if piece not in self.pieces:
                self.pieces.append(piece)
            ids.append(self.pieces.index(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)

    def kit(self, prompt: str = "Q:", split: str = "paragraph", **options: Any) -> Kit:
        fields: dict[str, Any] = {
            "prompt": prompt,
            "sampling": Sampling(0.0),
            "boundary": lambda: SPLITTERS[split]().open(self.pieces.__getitem__, 99),
            "stop_ids": frozenset({0}),
            "piece": self.pieces.__getitem__,
            "decode": self.decode,
            "encode": self.encode,
            "aside": lambda question, prefill: self.encode(f" ASIDE {prefill[-1]}"),
            "rng": random.Random(0),
        }
        return Kit(**fields | options)

    def context(self, output: str = "", prompt: str = "Q:") -> Context:
        context = Context(1, self.encode(prompt))
        context.extend(self.encode(output))
        return context

    def draft(self, *units: str) -> Draft:
        draft = Draft()
        for unit in units:
            draft.tokens += self.encode(unit)
            draft.ends.append(len(draft.tokens))
        return draft


def finish(plan: Plan[Any], answer: Any = None) -> Any:
    """Send a plan its last answer; return its result."""
    with pytest.raises(StopIteration) as stop:
        plan.send(answer)
    return stop.value.value


def asked(plan: Plan[Any], answer: Any = None) -> Query:
    """Return the single query that a plan makes next."""
    query = plan.send(answer)
    assert isinstance(query, Query)
    return query
