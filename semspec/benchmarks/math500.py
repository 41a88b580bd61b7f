"""MATH-500: 500 competition problems with a boxed answer (Hendrycks 2021, Lightman 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.benchmarks._data import BOXED, MathBenchmark, Row, pick
from semspec.protocols import BenchmarkProblem
from semspec.registry import register


@register("benchmark", "math500")
@dataclass(frozen=True, kw_only=True)
class Math500(MathBenchmark):
    """MATH-500: competition mathematics; data from the Hub (500 problems)."""

    revision: str = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"

    name: ClassVar[str] = "math500"
    repo: ClassVar[str] = "HuggingFaceH4/MATH-500"
    files: ClassVar[Sequence[str]] = ("test.jsonl",)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        question = f"{pick(where, row, 'problem')}\n\n{BOXED}"
        return BenchmarkProblem(name, question, str(pick(where, row, "answer")))
