"""A single question given by the user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from semspec import world
from semspec.benchmarks._answers import after_thinking, last_boxed
from semspec.errors import UserError
from semspec.protocols import Benchmark, BenchmarkProblem, Grade
from semspec.registry import register


@register("benchmark", "prompt")
@dataclass(frozen=True, kw_only=True)
class Prompt(Benchmark):
    """One question of your own (prompt="..."); graded if it is from the embedded world."""

    text: str = ""

    @classmethod
    def of_prompt(cls, text: str) -> Self:
        return cls(text=text)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls(text="What is 2 + 2?")

    def problems(self) -> Iterator[BenchmarkProblem]:
        if not self.text.strip():
            raise UserError('the prompt is empty: give one, such as prompt="What is 2 + 2?"')
        known = world.find_problem(self.text)
        yield BenchmarkProblem("prompt", self.text, known.answer if known else None)

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        found = last_boxed(after_thinking(text))
        correct = None if problem.answer is None else found == problem.answer
        return Grade(correct, found, {})
