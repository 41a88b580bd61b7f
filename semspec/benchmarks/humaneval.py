"""HumanEval: write Python functions from their docstrings, judged by unit tests (Chen 2021)."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

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
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(```|\Z)", re.DOTALL)
_FUTURE = re.compile(r"^from __future__ import [^\n(\\]+$", re.MULTILINE)
_PYTHON = re.compile(r"[ \t]*+((python|py)[\d.]*([ \t{].*)?)?[ \t]*", re.IGNORECASE)  # or unnamed


@register("benchmark", "humaneval")
@dataclass(frozen=True, kw_only=True)
class HumanEval(DataBenchmark):
    """HumanEval: code run in a confined process (Linux, or confine=limits); from the Hub (164)."""

    revision: str = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
    confine: str = "strict"  # limits: time and memory only, the network is open
    seconds: float = 10.0  # for one program and its tests

    name = "humaneval"
    repo = "openai/openai_humaneval"
    files = ("openai_humaneval/test-*.parquet", "HumanEval.jsonl")

    def __post_init__(self) -> None:
        if self.confine not in ("strict", "limits"):
            raise UserError(f"benchmark.confine={self.confine}: give strict or limits")
        if self.seconds < 1:
            raise UserError(f"benchmark.seconds={self.seconds}: give at least 1")

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        head = str(pick(where, row, "prompt"))
        test, entry = (str(pick(where, row, name)) for name in ("test", "entry_point"))
        tests = {"head": head, "test": test, "entry": entry}
        return BenchmarkProblem(name, f"{ASK}\n\n```python\n{head}```", json.dumps(tests))

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        assert problem.answer is not None, problem.id
        asked = json.loads(problem.answer)
        written = written_code(after_thinking(text), asked["entry"])
        if written is None:
            return Grade(False, None, {"without_code": 1})
        before, code = written
        if _defines(code, asked["entry"]):  # with the imports and helpers of the question
            code = _before(asked) + textwrap.dedent(code)  # a block may be indented within a list
        else:  # only the body: a completion of the question's head
            code = asked["head"] + code
        outcome = self._run(code, asked)
        if outcome.startswith("NameError") and before:  # imports are in other blocks
            code = f"{before}\n{code}"
            outcome = self._run(code, asked)
        details = {"without_code": 0, "timed_out": int(outcome.startswith("timed out"))}
        return Grade(outcome == "passed", code, details)

    def _run(self, code: str, asked: Mapping[str, str]) -> str:
        futures = "\n".join(_FUTURE.findall(code))  # these must come first
        code = _FUTURE.sub("", code)
        return run_program(
            f"{futures}\n{code}\n",
            self.seconds,
            strict=self.confine == "strict",
            entry=asked["entry"],
            given=_before(asked),
            check=f"{asked['test']}\n\ncheck({asked['entry']})\n",
        )


def _before(asked: Mapping[str, str]) -> str:
    """Return the imports and helpers above the function in the question."""
    return asked["head"].partition(f"def {asked['entry']}(")[0]


def written_code(text: str, entry: str) -> tuple[str, str] | None:
    """Return the code of the blocks before the answer, and the block of Python that is the answer.

    The answer is the last block that defines the function: examples and outputs may follow. A block
    that is cut off by the end of the text counts if no whole block defines the function, and the last
    whole block counts if none at all does. Returns None if no block counts.
    """
    found = _BLOCK.findall(text.replace("\r\n", "\n"))
    blocks = [(code, bool(end)) for heading, code, end in found if _PYTHON.fullmatch(heading)]
    ranks = [(_defines(code, entry), whole, at) for at, (code, whole) in enumerate(blocks)]
    defines, whole, at = max(ranks, default=(False, False, -1))
    if not (defines or whole):
        return None
    return "\n".join(code for code, _ in blocks[:at]), blocks[at][0]


def _defines(code: str, entry: str) -> bool:
    return re.search(rf"^[ \t]*def[ \t]+{re.escape(entry)}[ \t]*\(", code, re.MULTILINE) is not None
