"""SPEED-Bench: prompts of eleven categories to measure speculative decoding with (NVIDIA 2026)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from semspec.benchmarks._data import Row, Sample, in_turn, pick
from semspec.benchmarks._judge import OpenBenchmark
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register
from semspec.storage import dataset_rows as rows


@register("benchmark", "speed_bench")
@dataclass(frozen=True, kw_only=True)
class SpeedBench(OpenBenchmark):
    """SPEED-Bench, first turns, categories in turn, not graded; prepared JSONL: benchmark.data=FILE."""

    categories: tuple[str, ...] = ()  # only these; (): all that the file has
    revision: str = "487aa718444e816458d1a0a52bfce7a454285cf4"

    name = "speed_bench"
    repo = "nvidia/SPEED-Bench"
    files = ("*.jsonl", "*.parquet")
    by_part: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))

    def fetch(self, files: Sequence[str]) -> Path:
        raise UserError(
            "SPEED-Bench's Hub copy holds placeholders, as its sources' licences ask: after 'hf download"
            " nvidia/SPEED-Bench --repo-type dataset', prepare it with NVIDIA's specdec_bench (prepare_data.py), and"
            " give benchmark.data=FILE"
        )

    def rows(self) -> rows.Rows:
        """Yield rows of the categories in turn, so that the first few problems cover all of them."""
        by_category: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for where, row in super().rows():
            by_category[str(pick(where, row, "category"))].append((where, row))
        wanted = self.categories or tuple(by_category)
        if missing := [one for one in wanted if one not in by_category]:
            there = ", ".join(sorted(by_category))
            raise UserError(
                f"benchmark.categories={list(self.categories)}: the file has no {', '.join(missing)}, but {there}"
            )
        yield from in_turn(by_category[one] for one in wanted)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        turns = pick(where, row, "turns")
        first = turns[0] if isinstance(turns, list | tuple) and turns else turns
        if not isinstance(first, str) or not first.strip():
            raise UserError(f"{where} has no text as its first of 'turns'")
        number = row.get("question_id") or name.rpartition("-")[2]
        return BenchmarkProblem(f"{pick(where, row, 'category')}-{number}", first)

    @classmethod
    def sample(cls) -> Sample:
        """Return rows in the prepared files' columns."""
        made = [
            {"question_id": f"{category}{n}", "category": category, "turns": [f"{category}, {n}?"]}
            for category in ("coding", "math", "rag")
            for n in range(3)
        ]
        return Sample("test.jsonl", made, needs="turns")
