"""Base classes of benchmarks from published data sets: loading of rows, and grading."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, ClassVar

from semspec.benchmarks._answers import LETTERS, after_thinking, chosen_letter, last_boxed
from semspec.benchmarks._grading import same_answer
from semspec.errors import UserError
from semspec.models.hub import Access, snapshot
from semspec.models.wanted import DATASET, Wanted
from semspec.protocols import Benchmark, BenchmarkProblem, Grade, Run, Source
from semspec.storage import dataset_rows as rows

Row = Mapping[str, Any]
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE = "Please reason step by step, and put the letter of your answer within \\boxed{}."
REFERENCES = "references"  # a column with the texts that an answer may repeat


@dataclass(frozen=True)
class Sample:
    """Made-up rows of a data set for the contract tests; ``right`` and ``wrong`` answer the first one."""

    file: str  # where the data set keeps them
    rows: list[dict[str, Any]]
    right: list[str] = field(default_factory=list)  # none: the benchmark is not graded
    wrong: list[str] = field(default_factory=list)
    needs: str = ""  # a column without which a row is refused
    options: Mapping[str, Any] = field(default_factory=dict)  # of the benchmark, to read this


@dataclass(frozen=True, kw_only=True)
class DataBenchmark(Benchmark):
    """A benchmark whose problems come from a data set on the Hub, or from a local copy of its files."""

    data: str = ""  # a local file or folder instead of the Hub
    revision: str = "main"  # the commit that is downloaded
    order: int | None = None  # seed that shuffles the problems; None: the data set's own order
    system: str = ""  # a system message before every question

    name: ClassVar[str]  # prefix of problem ids: math500-0007
    repo: ClassVar[str]
    files: ClassVar[Sequence[str]]  # patterns of the files in the repository

    def problems(self) -> Iterator[BenchmarkProblem]:
        """Yield the problems; an id is the row's number, whatever the order."""
        numbered: Iterable[tuple[int, tuple[str, Any]]] = enumerate(self.rows(), 1)
        if self.order is not None:
            numbered = list(numbered)
            random.Random(f"{self.order} {self.name}").shuffle(numbered)
        number = 0
        for number, (where, row) in numbered:
            if not isinstance(row, Mapping):
                raise UserError(f"{where} is not an object with columns: see docs/benchmarks.md")
            problem = self.problem(f"{self.name}-{number:04d}", where, row)
            if self.system:
                problem = replace(problem, system=self.system)
            if REFERENCES in row:
                problem = replace(problem, references=_references(where, row[REFERENCES]))
            yield problem
        if not number:
            raise UserError(f"{self.data or self.repo} has no rows: download it again")

    def rows(self) -> rows.Rows:
        """Yield all rows with their places."""
        for file in self.tables(self.files):
            yield from rows.read(file)

    def tables(self, files: Sequence[str]) -> list[Path]:
        """Return the local files, downloading them if ``data`` is not set."""
        if not self.data:
            return rows.tables(self.fetch(files), files)
        path = Path(self.data).expanduser()
        if not path.exists():
            raise UserError(f"benchmark.data={self.data} does not exist: give a file or a folder")
        if not (found := rows.tables(path, files)):
            wanted = " or ".join(files)
            raise UserError(
                f"benchmark.data={self.data} contains no {wanted}: give the file itself"
            )
        return found

    def fetch(self, files: Sequence[str]) -> Path:
        """Download the missing files; return their folder."""
        return snapshot(self.repo, self.revision, self._wanted(files), Access())

    def loads(self, run: Run) -> Sequence[Source]:
        if self.data:
            return ()
        return [Source("problems", self.repo, self.revision, self._wanted(self.files))]

    def _wanted(self, files: Sequence[str]) -> Wanted:
        return replace(DATASET, patterns=tuple(files), option="benchmark.data")

    @classmethod
    def sample(cls) -> Sample | None:
        """Return rows for the contract tests; None if tests/support/benchmark_rows.py has some."""
        return None

    @abstractmethod
    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        """Turn a row into a problem; ``where`` is the row's place, for errors."""

    @abstractmethod
    def grade(self, problem: BenchmarkProblem, text: str) -> Grade: ...


def _references(where: str, given: Any) -> tuple[str, ...]:
    """Return the texts of the column ``references``: one, several or none."""
    texts = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: {REFERENCES} must be a text or a list of texts")
    return tuple(text for text in texts if text)


def in_turn(tables: Iterable[Iterable[tuple[str, Any]]]) -> rows.Rows:
    """Yield the first row of each table, then the second ones, and so on."""
    turns = chain.from_iterable(zip_longest(*tables))
    return (entry for entry in turns if entry is not None)


def pick(where: str, row: Row, *names: str) -> Any:
    """Return the first of these columns that the row has; raise UserError if it has none."""
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return value
    there = ", ".join(str(name) for name in row)
    raise UserError(f"{where} has no column {' or '.join(names)} (but {there})")


@dataclass(frozen=True, kw_only=True)
class MathBenchmark(DataBenchmark):
    """A benchmark whose answers are boxed and compared as mathematics."""

    asked: ClassVar[Sequence[str]]  # the question's column under any of its names
    answered: ClassVar[Sequence[str]] = ("answer",)  # that of the gold answer

    def problem(self, name: str, where: str, row: Row) -> BenchmarkProblem:
        question = f"{pick(where, row, *self.asked)}\n\n{BOXED}"
        return BenchmarkProblem(name, question, str(pick(where, row, *self.answered)))

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        found = last_boxed(after_thinking(text))
        if found is None:
            return Grade(False, None, {"unboxed": 1})
        assert problem.answer is not None, problem.id
        same = same_answer(problem.answer, found)
        return Grade(same is True, found, {"unboxed": 0, "grading_timed_out": int(same is None)})


@dataclass(frozen=True, kw_only=True)
class ChoiceBenchmark(DataBenchmark):
    """A benchmark of questions with lettered options."""

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        found = chosen_letter(after_thinking(text), options_of(problem.question))
        return Grade(found == problem.answer, found, {"unanswered": int(found is None)})


def choice_question(question: str, options: Sequence[str]) -> str:
    """Append lettered options to a question; ``options_of`` reads them back."""
    assert 2 <= len(options) <= len(LETTERS), options
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([question.strip(), "", *lines, "", CHOICE])


def options_of(question: str) -> list[str]:
    """Return the options of a question from ``choice_question``."""
    listed = question.removesuffix(CHOICE).rstrip()
    starts: list[re.Match[str]] = []
    for letter in LETTERS:  # the last "A)" with the others after it: questions may hold letters
        found = list(re.finditer(rf"^{letter}\) ", listed, re.MULTILINE))
        later = [m for m in found if not starts or m.start() > starts[-1].start()]
        if not later:
            break
        starts.append(later[-1] if not starts else later[0])
    ends = [m.start() for m in starts[1:]] + [len(listed)]
    return [listed[m.end() : end].strip() for m, end in zip(starts, ends, strict=True)]
