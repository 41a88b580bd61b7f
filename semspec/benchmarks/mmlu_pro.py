"""MMLU-Pro: questions of fourteen subjects with up to ten options (Wang 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._answers import LETTERS
from semspec.benchmarks._data import ChoiceBenchmark, Row, choice_question, pick
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register

FILLER = "N/A"  # one release pads short lists with it


@register("benchmark", "mmlu_pro")
@dataclass(frozen=True, kw_only=True)
class MmluPro(ChoiceBenchmark):
    """MMLU-Pro, shuffled (the data set is sorted by subject); from the Hub (12,032 problems)."""

    revision: str = "b189ec765aa7ed75c8acfea42df31fdae71f97be"
    order: int | None = 0

    name = "mmlu_pro"
    repo = "TIGER-Lab/MMLU-Pro"
    files = ("data/test-*.parquet",)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        options = [str(option) for option in pick(where, row, "options") if option != FILLER]
        answer = str(pick(where, row, "answer"))
        if answer not in LETTERS[: len(options)] or len(options) < 2:
            raise UserError(
                f"{where}: the answer '{answer}' is not one of its {len(options)} options"
            )
        question = choice_question(str(pick(where, row, "question")), options)
        return BenchmarkProblem(name, question, answer)
