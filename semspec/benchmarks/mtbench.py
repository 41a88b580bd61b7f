"""MT-Bench: 80 open questions of eight kinds (Zheng 2023); the first turn of each."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import Row, pick
from semspec.benchmarks._judge import OpenBenchmark
from semspec.protocols import BenchmarkProblem
from semspec.registry import register


@register("benchmark", "mtbench")
@dataclass(frozen=True, kw_only=True)
class MtBench(OpenBenchmark):
    """MT-Bench, first turns, not graded (judge=URL rates them); from the Hub (80)."""

    revision: str = "b60d01a44377daa2d9434e50a91a9e4169a090d5"

    name = "mtbench"
    repo = "HuggingFaceH4/mt_bench_prompts"
    files = ("data/train-*.parquet", "question.jsonl")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        reference = row.get("reference") or None
        first = str(reference[0]) if isinstance(reference, list) else None
        return BenchmarkProblem(name, str(pick(where, row, "prompt", "turns")[0]), first)
