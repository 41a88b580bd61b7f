"""Benchmarks: problems, and how their solutions are graded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from semspec.protocols.plugin import Plugin


class Benchmark(Plugin, Protocol):
    """Problems, and how their solutions are graded."""

    by_part: ClassVar[bool] = False  # figures tell acceptance in the thinking and after it apart
    seed_draws: ClassVar[bool] = False  # another ``seed`` of its own means other problems

    @classmethod
    def of_prompt(cls, text: str) -> Self | None:
        """Return the benchmark that asks the user's own question; None: it asks others."""
        return None

    def problems(self) -> Iterable[BenchmarkProblem]: ...

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        """Grade a whole assistant's turn, thinking included."""
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One question; ``answer`` is the gold answer as text, or None where nothing is graded."""

    id: str
    question: str
    answer: str | None = None
    system: str | None = None
    prompt_ids: tuple[int, ...] | None = None  # the prompt as it is, instead of the question's
    references: Sequence[str] = ()  # what the answer may repeat: a predicted one, a file, documents
    tenant: str = ""  # whose question it is: answers are remembered for the same tenant alone
    attempt_of: str = ""  # the id of the problem that this is a further attempt at


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading one problem."""

    correct: bool | None  # None: not graded
    answer: str | None  # what was found in the text
    details: Mapping[str, Any]  # e.g. step-level truth; JSON only
    # (start, end) of each step in the text and whether it is true, where the benchmark can tell
    steps: Sequence[tuple[int, int, bool]] = ()
