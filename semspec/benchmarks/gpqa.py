"""GPQA Diamond: graduate-level science with four options (Rein 2023)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from semspec.benchmarks._answers import LETTERS
from semspec.benchmarks._data import ChoiceBenchmark, Row, choice_question, pick
from semspec.protocols import BenchmarkProblem
from semspec.registry import register

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


@register("benchmark", "gpqa")
@dataclass(frozen=True, kw_only=True)
class Gpqa(ChoiceBenchmark):
    """GPQA Diamond, options shuffled by seed; gated: accept its terms on the Hub (198 problems)."""

    revision: str = "633f5ee89ab8ad4522a9f850766b73f62147ffdd"
    seed: int = 0  # for the options' order: in the data set the right one always comes first

    name = "gpqa"
    repo = "Idavidrein/gpqa"
    files = ("gpqa_diamond.csv",)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        options = [str(pick(where, row, column)).strip() for column in ("Correct Answer", *WRONG)]
        order = list(range(len(options)))
        random.Random(f"{self.seed} {name}").shuffle(order)
        question = choice_question(str(pick(where, row, "Question")), [options[i] for i in order])
        return BenchmarkProblem(name, question, LETTERS[order.index(0)])
