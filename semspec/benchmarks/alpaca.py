"""AlpacaEval: 805 open instructions (Li 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import Row, pick
from semspec.benchmarks._judge import OpenBenchmark
from semspec.protocols import BenchmarkProblem
from semspec.registry import register


@register("benchmark", "alpaca")
@dataclass(frozen=True, kw_only=True)
class Alpaca(OpenBenchmark):
    """AlpacaEval: open instructions, not graded (judge=URL rates them); from the Hub (805)."""

    revision: str = "2edc6fad8be6b14ea7230aabfd08188da6b8b814"

    name = "alpaca"
    repo = "tatsu-lab/alpaca_eval"
    files = ("alpaca_eval.json",)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        parts = [str(pick(where, row, "instruction")), str(row.get("input") or "")]
        return BenchmarkProblem(name, "\n\n".join(part for part in parts if part))
