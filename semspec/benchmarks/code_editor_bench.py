"""CodeEditorBench: programs to debug, translate, optimise and adapt (Guo 2024).

Its own judge compiles C++, Java and Python in a container; here it is used for speed and text only.
Answers repeat most of the program that they edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semspec.benchmarks._data import Row, in_turn, pick
from semspec.benchmarks._judge import OpenBenchmark
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.registry import register
from semspec.storage import dataset_rows as rows

FILES = {
    "debug": "code_debug_{part}.jsonl",
    "translate": "code_translate_{part}.jsonl",
    "polish": "code_polishment_{part}.jsonl",
    "switch": "code_switch_{part}.jsonl",
}
ONLY_CODE = "Answer with the whole program in one code block."


@register("benchmark", "code_editor_bench")
@dataclass(frozen=True, kw_only=True)
class CodeEditorBench(OpenBenchmark):
    """CodeEditorBench: code editing, tasks in turn, not graded; from the Hub (160-480 MB a task)."""

    revision: str = "9bd3f75915e7583feae1d0e98c09176c20a6bd1d"
    tasks: tuple[str, ...] = ("debug", "translate", "polish", "switch")
    part: str = "primary"  # or plus

    name = "code_editor_bench"
    repo = "m-a-p/CodeEditorBench"
    files = ("code_*.jsonl",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks or any(task not in FILES for task in self.tasks):
            raise UserError(f"benchmark.tasks={list(self.tasks)}: choose from {', '.join(FILES)}")
        if self.part not in ("primary", "plus"):
            raise UserError(f"benchmark.part={self.part}: give primary or plus")

    def rows(self) -> rows.Rows:
        """Yield rows of the tasks in turn, reading no more of the large files than needed."""
        wanted = [FILES[task].format(part=self.part) for task in self.tasks]
        files = self.tables(wanted)
        missing = [file for file in wanted if file not in {f.name for f in files}]
        if missing and self.data and Path(self.data).expanduser().is_dir():
            raise UserError(
                f"benchmark.data={self.data} contains no {' or '.join(missing)}: leave"
                " these tasks out of benchmark.tasks"
            )
        yield from in_turn(rows.read(file) for file in files)

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        question, code = _question(where, row)
        return BenchmarkProblem(name, question, references=(code,))


def _question(where: str, row: Row) -> tuple[str, str]:
    """Return the question and the program in it; the row's columns show which task it belongs to."""

    def test(which: str = "") -> str:
        given = pick(where, row, f"public_{which}tests_input")
        wanted = pick(where, row, f"public_{which}tests_output")
        return f"Input:\n{given}\nOutput:\n{wanted}"

    code, then = "source_code", ""
    if "incorrect_solutions" in row:
        code = "incorrect_solutions"
        ask = f"Correct the errors in this {pick(where, row, 'code_language')} program."
    elif "similar_source_code" in row:
        code = "similar_source_code"
        ask = "Change this program, so that it solves another, related problem."
        then = f"Now it does this.\n{test('similar_')}\n\nIt must do this.\n{test('target_')}"
    elif "target_lang" in row:
        languages = f"{pick(where, row, 'source_lang')} to {pick(where, row, 'target_lang')}"
        ask = f"Translate this program from {languages}."
    else:
        ask = "Make this program faster and let it use less memory, without changing what it does."
    then = then or f"It must pass this test.\n{test()}"
    program = str(pick(where, row, code)).strip()
    return f"{ask}\n\n```\n{program}\n```\n\n{then}\n\n{ONLY_CODE}", program
