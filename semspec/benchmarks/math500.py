"""MATH-500: 500 competition problems with a boxed answer (Hendrycks 2021, Lightman 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.benchmarks._data import MathBenchmark
from semspec.registry import register


@register("benchmark", "math500")
@dataclass(frozen=True, kw_only=True)
class Math500(MathBenchmark):
    """MATH-500: competition mathematics; data from the Hub (500 problems)."""

    revision: str = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"

    name = "math500"
    repo = "HuggingFaceH4/MATH-500"
    files = ("test.jsonl",)
    asked = ("problem",)
