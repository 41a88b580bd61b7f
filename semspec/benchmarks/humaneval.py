"""HumanEval: Python functions from their docstring, judged by unit tests (Chen 2021)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from semspec.benchmarks._answers import after_thinking
from semspec.benchmarks._confine import run_program
from semspec.benchmarks._data import DataBenchmark, Row, pick
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem, Grade
from semspec.registry import register

ASK = (
    "Complete the following Python function. Answer with the whole function, and the imports that"
    " it needs, in one ```python block."
)
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"[ \t]*((python|py)[\d.]*([ \t{].*)?)?[ \t]*", re.IGNORECASE)  # or unnamed


@register("benchmark", "humaneval")
@dataclass(frozen=True, kw_only=True)
class HumanEval(DataBenchmark):
    """HumanEval: code run in a confined process (Linux, or confine=limits); from the Hub (164)."""

    revision: str = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
    confine: str = "strict"  # limits: time and memory only, the network is open
    seconds: float = 10.0  # for one program and its tests

    name: ClassVar[str] = "humaneval"
    repo: ClassVar[str] = "openai/openai_humaneval"
    files: ClassVar[Sequence[str]] = ("openai_humaneval/test-*.parquet", "HumanEval.jsonl")

    def __post_init__(self) -> None:
        if self.confine not in ("strict", "limits"):
            raise UserError(f"benchmark.confine={self.confine}: give strict or limits")
        if self.seconds < 1:
            raise UserError(f"benchmark.seconds={self.seconds}: give at least 1")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        head = str(pick(where, row, "prompt"))
        tests = {
            "head": head,
            "test": str(pick(where, row, "test")),
            "entry": str(pick(where, row, "entry_point")),
        }
        return BenchmarkProblem(name, f"{ASK}\n\n```python\n{head}```", json.dumps(tests))

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        assert problem.answer is not None, problem.id
        asked = json.loads(problem.answer)
        code = written_code(after_thinking(text))
        if code is None:
            return Grade(False, None, {"without_code": 1})
        if f"def {asked['entry']}(" not in code:  # the body alone: a completion of the head
            code = asked["head"] + code
        else:  # imports and helpers above the function are the question's, too
            code = asked["head"].partition(f"def {asked['entry']}(")[0] + code
        program = f"{code}\n\n{asked['test']}\n\ncheck({asked['entry']})\n"
        told = run_program(program, self.seconds, strict=self.confine == "strict")
        details = {"without_code": 0, "timed_out": int(told.startswith("timed out"))}
        return Grade(told == "passed", code, details)


def written_code(text: str) -> str | None:
    """The last block of Python in an answer; those of other languages are passed over."""
    found = _BLOCK.findall(text.replace("\r\n", "\n"))
    blocks: list[str] = [code for heading, code in found if _PYTHON.fullmatch(heading)]
    return blocks[-1] if blocks else None
