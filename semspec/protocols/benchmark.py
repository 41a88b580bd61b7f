"""Benchmarks: problems, and how to grade their solutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from semspec.protocols.plugin import Plugin


class Benchmark(Plugin, Protocol):
    """Problems, and how to grade their solutions."""

    by_part: ClassVar[bool] = False  # figures separate acceptance in the thinking and after it
    seed_draws: ClassVar[bool] = False  # its own ``seed`` option selects other problems

    @classmethod
    def of_prompt(cls, text: str) -> Self | None:
        """Return the benchmark that asks the user's own question; None if this one does not."""
        return None

    def problems(self) -> Iterable[BenchmarkProblem]: ...

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        """Grade the assistant's whole turn, thinking included."""
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkProblem:
    """One question; ``answer`` is the reference answer as text, or None if nothing is graded."""

    id: str
    question: str
    answer: str | None = None
    system: str | None = None
    prompt_ids: tuple[int, ...] | None = None  # the exact prompt, instead of ``question``
    references: Sequence[str] = ()  # what the answer may repeat: a prediction, a file, documents
    tenant: str = ""  # whose question it is: only the same tenant's answers are reused
    attempt_of: str = ""  # id of the problem, if this is a further attempt at it


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading one problem."""

    correct: bool | None  # None: not graded
    answer: str | None  # the answer found in the text
    details: Mapping[str, Any]  # e.g. step-level truth; JSON only
    # (start, end, true) of each step in the text, if the benchmark can tell
    steps: Sequence[tuple[int, int, bool]] = ()
