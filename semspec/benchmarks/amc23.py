"""AMC 2023: 40 problems of the AMC 12, asked without their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.benchmarks._data import BOXED, MathBenchmark, Row, pick
from semspec.protocols import BenchmarkProblem
from semspec.registry import register


@register("benchmark", "amc23")
@dataclass(frozen=True, kw_only=True)
class Amc23(MathBenchmark):
    """AMC 2023, answers as numbers; from the Hub (40)."""

    revision: str = "f9810c0439cd3c670ec885d328a2f06a87f3694a"

    name: ClassVar[str] = "amc23"
    repo: ClassVar[str] = "zwhe99/amc23"
    files: ClassVar[Sequence[str]] = ("*test*.parquet", "*test*.jsonl")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        question = f"{pick(where, row, 'question', 'problem')}\n\n{BOXED}"
        return BenchmarkProblem(name, question, str(pick(where, row, "answer")))
