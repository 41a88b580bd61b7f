"""GSM8K: word problems of primary school whose answer is a number (Cobbe 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from semspec.benchmarks._data import BOXED, MathBenchmark, Row, pick
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register
from semspec.storage import dataset_rows as rows

MARK = "####"  # stands before the final number
TRAIN = ("main/train-*.parquet", "train.jsonl")
ASK = "Question: {question}\nLet's think step by step\nAnswer:"  # ARC-Decode's, with shots
_CALCULATION = re.compile(r"<<[^<>]*>>")  # the data set's calculator notes within a solution


@register("benchmark", "gsm8k")
@dataclass(frozen=True, kw_only=True)
class Gsm8k(MathBenchmark):
    """GSM8K: word problems; data from the Hub (1,319 problems)."""

    revision: str = "740312add88f781978c0658806c59bc2815b9866"
    shots: int = 0  # solved examples before the question: the first ones of the train split

    name = "gsm8k"
    repo = "openai/gsm8k"
    files = ("main/test-*.parquet", "test.jsonl")

    def __post_init__(self) -> None:
        if self.shots < 0:
            raise UserError(f"benchmark.shots={self.shots}: give 0 or more, such as 4")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        _, answer = _solution(where, row)
        return BenchmarkProblem(name, f"{pick(where, row, 'question')}\n\n{BOXED}", answer)

    def problems(self) -> Iterator[BenchmarkProblem]:
        if not self.shots:
            yield from super().problems()
            return
        head = "\n\n".join([BOXED, *self._examples()])
        for problem in super().problems():
            asked = ASK.format(question=problem.question.removesuffix(f"\n\n{BOXED}"))
            yield replace(problem, question=f"{head}\n\n{asked}")

    def _examples(self) -> list[str]:
        """Return the first ``shots`` problems of the train split, solved, with their answers boxed."""
        if self.data:  # a file's folder has the other split, too
            path = Path(self.data).expanduser()
            files = rows.tables(path.parent if path.is_file() else path, TRAIN)
        else:
            files = rows.tables(self.fetch(TRAIN), TRAIN)
        found = []
        for where, row in islice(chain.from_iterable(map(rows.read, files)), self.shots):
            solution, answer = _solution(where, row)
            asked = ASK.format(question=pick(where, row, "question"))
            found.append(f"{asked} {solution}\nThe answer is \\boxed{{{answer}}}.")
        if len(found) < self.shots:
            raise UserError(
                f"benchmark.shots={self.shots} needs that many problems of the train split,"
                f" and {len(found)} were found: put {TRAIN[-1]} beside"
                f" {self.data or 'the test split'}, or give fewer shots"
            )
        return found


def _solution(where: str, row: Row) -> tuple[str, str]:
    """Return a row's solution and its final number; raise UserError if no ``MARK`` separates them."""
    solution, mark, answer = str(pick(where, row, "answer")).rpartition(MARK)
    if not mark:
        raise UserError(f"{where}: the answer has no '{MARK}' before its number")
    return _CALCULATION.sub("", solution).strip(), answer.strip().replace(",", "")
