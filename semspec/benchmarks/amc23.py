"""AMC 2023: 40 problems of the AMC 12, asked without their options."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import MathBenchmark
from semspec.registry import register


@register("benchmark", "amc23")
@dataclass(frozen=True, kw_only=True)
class Amc23(MathBenchmark):
    """AMC 2023, answers as numbers; from the Hub (40)."""

    revision: str = "f9810c0439cd3c670ec885d328a2f06a87f3694a"

    name = "amc23"
    repo = "zwhe99/amc23"
    files = ("*test*.parquet", "*test*.jsonl")
    asked = ("question", "problem")
