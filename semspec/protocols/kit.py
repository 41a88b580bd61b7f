"""What a plugin gets for one problem."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from semspec.types import Boundary, Gate, Read, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _cannot_be_asked(question: str, prefill: str) -> list[int]:
    raise AssertionError("this kit was made without a way to ask the target")


@dataclass(frozen=True, slots=True)
class Kit:
    """The tools and numbers of one problem, for a drafter or a rule."""

    prompt: str  # the whole prompt as text
    sampling: Sampling
    boundary: Callable[[], Boundary]  # returns a fresh one at every call
    stop_ids: frozenset[int]  # end of text
    piece: Callable[[int], str]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    rng: random.Random
    evidence: tuple[Read, ...] = ()  # what the draft model reads for the rule while drafting
    gate: Gate | None = None  # where the rule stops the draft model
    # step rules keep as much of a rejected step as the target's distribution allows
    salvage: bool = False
    # the rule compares the drafter's probabilities, also those of nodes that were not sampled
    compares: bool = True
    layers: int = 1  # of the target
    trees: bool = False  # the rule walks trees; otherwise drafts are chains
    max_repeats: int = 0  # step rules reject a step that was already written so often; 0: never
    # (question, prefill) -> ids that ask the target something after an open turn: ``Text.aside``
    aside: Callable[[str, str], list[int]] = _cannot_be_asked
    references: Sequence[Sequence[int]] = ()  # ``BenchmarkProblem.references`` in the target's ids
    earlier: Earlier | None = None  # answers to earlier questions, where a drafter remembers them


class Earlier(Protocol):
    """Answers to earlier questions of the same tenant, to copy from."""

    def find(
        self, tail: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the length of the longest match with the end of ``tail``, and what followed it.

        The length is from ``least`` to ``longest``. What followed is [places, length], with -1 after an end. None if nothing
        matches.
        """
        ...
