"""AIME 2024: 30 problems whose answer is a number from 0 to 999."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import MathBenchmark
from semspec.registry import register


@register("benchmark", "aime24")
@dataclass(frozen=True, kw_only=True)
class Aime24(MathBenchmark):
    """AIME 2024: give max_new_tokens=32768, shorter budgets cost accuracy; from the Hub (30)."""

    revision: str = "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792"

    name = "aime24"
    repo = "Maxwell-Jia/AIME_2024"
    files = ("aime_2024_problems.parquet",)
    asked = ("Problem", "problem")
    answered = ("Answer", "answer")
