"""AIME 2024: 30 problems whose answer is a number from 0 to 999."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.benchmarks._data import BOXED, MathBenchmark, Row, pick
from semspec.protocols import BenchmarkProblem
from semspec.registry import register


@register("benchmark", "aime24")
@dataclass(frozen=True, kw_only=True)
class Aime24(MathBenchmark):
    """AIME 2024: give max_new_tokens=32768, shorter budgets cost accuracy; from the Hub (30)."""

    revision: str = "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792"

    name: ClassVar[str] = "aime24"
    repo: ClassVar[str] = "Maxwell-Jia/AIME_2024"
    files: ClassVar[Sequence[str]] = ("aime_2024_problems.parquet",)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        question = f"{pick(where, row, 'Problem', 'problem')}\n\n{BOXED}"
        return BenchmarkProblem(name, question, str(pick(where, row, "Answer", "answer")))
