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
    boundary: Callable[[], Boundary]  # a fresh one at every call
    stop_ids: frozenset[int]  # end of text
    piece: Callable[[int], str]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    rng: random.Random
    evidence: tuple[Read, ...] = ()  # what the rule wants read while the draft model drafts
    gate: Gate | None = None  # how far the rule lets the draft model write
    salvage: bool = False  # step rules keep of a rejected step what the target's own law allows
    layers: int = 1  # of the target
    trees: bool = False  # whether the rule walks trees; without it a draft is a chain
    max_repeats: int = 0  # step rules reject a step that was written this often before; 0: never
    # (question, prefill) -> ids behind an open turn that ask the target something: ``Text.aside``
    aside: Callable[[str, str], list[int]] = _cannot_be_asked
    references: Sequence[Sequence[int]] = ()  # ``BenchmarkProblem.references`` in the target's ids
    earlier: Earlier | None = None  # answers to earlier questions, where a drafter remembers them


class Earlier(Protocol):
    """Answers to earlier questions of the same tenant, to copy from."""

    def find(
        self, tail: Sequence[int], longest: int, least: int, length: int
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the longest match of at least ``least`` tokens, ``longest`` at most, with ``tail``'s end.

        Beside its length stands what followed [places, length], -1 after an end; None: nothing matches.
        """
        ...
