"""GSM8K: word problems of primary school with a number as answer (Cobbe 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import BOXED, MathBenchmark, Row, pick
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register

MARK = "####"  # stands before the final number


@register("benchmark", "gsm8k")
@dataclass(frozen=True, kw_only=True)
class Gsm8k(MathBenchmark):
    """GSM8K: word problems; data from the Hub (1,319 problems)."""

    revision: str = "740312add88f781978c0658806c59bc2815b9866"

    name = "gsm8k"
    repo = "openai/gsm8k"
    files = ("main/test-*.parquet", "test.jsonl")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        _, mark, answer = str(pick(where, row, "answer")).rpartition(MARK)
        if not mark:
            raise UserError(f"{where}: the answer has no '{MARK}' before its number")
        question = f"{pick(where, row, 'question')}\n\n{BOXED}"
        return BenchmarkProblem(name, question, answer.strip().replace(",", ""))
