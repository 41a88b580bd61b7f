"""Spec-Bench: six tasks of 80 questions each, for speed (Xia 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.benchmarks._data import Row, in_turn, pick
from semspec.benchmarks._judge import OpenBenchmark
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register
from semspec.storage import dataset_rows as rows

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = "writing roleplay reasoning math coding extraction stem humanities".split()
COMMIT = "5544fd7a98df8aaf0662381f0c96e8696207e93d"
RAW = "https://raw.githubusercontent.com/hemingkx/Spec-Bench"
URL = f"{RAW}/{COMMIT}/data/spec_bench/question.jsonl"


@register("benchmark", "spec_bench")
@dataclass(frozen=True, kw_only=True)
class SpecBench(OpenBenchmark):
    """Spec-Bench: six tasks in turn, not graded; a file: benchmark.data=question.jsonl (480)."""

    tasks: tuple[str, ...] = TASKS

    name = "spec_bench"
    repo = "hemingkx/Spec-Bench"
    files = ("question.jsonl",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        unknown = [task for task in self.tasks if task not in TASKS]
        if unknown or not self.tasks:
            raise UserError(f"benchmark.tasks={list(self.tasks)}: choose from {', '.join(TASKS)}")

    def fetch(self, files: Sequence[str]) -> Path:
        raise UserError(
            f"Spec-Bench is not on the Hub: run 'curl -LO {URL}' and give benchmark.data=question.jsonl"
        )

    def rows(self) -> rows.Rows:
        """Yield rows of the tasks in turn, so that the first few problems cover all tasks."""
        by_task: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for where, row in super().rows():
            category = pick(where, row, "category")
            by_task["mt_bench" if category in MT_BENCH else category].append((where, row))
        if missing := [task for task in self.tasks if task not in by_task]:
            raise UserError(f"benchmark.data={self.data} has no rows of {', '.join(missing)}")
        yield from in_turn(by_task[task] for task in self.tasks)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        number = pick(where, row, "question_id")
        return BenchmarkProblem(f"{row['category']}-{number}", str(pick(where, row, "turns")[0]))
