"""semspec as a library: load a pair of models, then solve or stream questions.

    with semspec.load(accept="logprob", threshold=-4) as pair:
        for step in pair.stream("Modulo 100, let x=76, k is x - 2. Find k."):
            print(step.author, step.score, step.text)

docs/api.md lists what is public; everything else may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from semspec.choices.names import quoted
from semspec.choices.presets import with_recommended
from semspec.choices.resumed import repeatable
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.config import RunConfig, build, compose
from semspec.errors import UserError
from semspec.models.text import opening
from semspec.protocols import BenchmarkProblem
from semspec.report.transcript import Piece, pieces
from semspec.results.figures import Solve as Figures
from semspec.solver import Solver
from semspec.types import Round, Writer

__all__ = ["Figures", "Pair", "Solution", "Step", "UserError", "load"]
Mode = Literal["speculative", "plain"]
_NEEDS_NO_QUOTES = re.compile(r"[\w./:@+-]+")


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of ``split`` in a text; with ``split="token"``, a run of tokens by one writer."""

    text: str
    author: Writer  # who wrote its end; "draft" where the draft was kept
    score: float | None = None  # the rule's score of the kept draft, or of the first rejected one
    rejected: str = ""  # the drafted text that this step replaces


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer to one question; the texts of its steps add up to its text."""

    question: str
    text: str  # the assistant's whole turn, thinking included
    steps: tuple[Step, ...]
    figures: Figures  # tokens, passes and seconds
    finished: bool  # False: the budget ran out


class Pair:
    """A loaded target and draft; close it, or use it as a context manager.

    Like a run, it samples from ``seed``, so the same question gets the same answer.
    """

    def __init__(self, config: RunConfig) -> None:
        """Load the models of a configuration; ``semspec.load`` composes one."""
        self._solver = Solver(config, beside=True)
        self._solver.measure(())  # without questions, it uses what an earlier run has measured
        self._closed = False

    def solve(
        self,
        question: str,
        mode: Mode = "speculative",
        system: str | None = None,
        reference: str | Sequence[str] = (),
    ) -> Solution:
        """Answer a question; with ``mode="plain"`` the target writes alone, for comparison.

        ``reference``: one or several texts that the answer may partly repeat, such as a text to edit, a predicted
        answer, or retrieved documents. It makes the answer faster, whatever drafts, and does not change which
        answers are possible.
        Raises UserError if the question does not fit into the models' context.
        """
        if mode not in get_args(Mode):
            raise UserError(f"mode={mode}: give {' or '.join(get_args(Mode))}")
        problem = self._problem(question, system, reference)
        (solved,) = self._solver.solve([problem], mode)
        outcome = solved.outcome
        if mode == "speculative":
            self._solver.remember(problem, outcome.tokens)
        figures = Figures.from_outcome(outcome, solved.text)
        steps = tuple(self._steps(problem, outcome.rounds))
        return Solution(question, solved.text, steps, figures, outcome.finish == "eos")

    def stream(
        self, question: str, system: str | None = None, reference: str | Sequence[str] = ()
    ) -> Iterator[Step]:
        """Answer a question and yield each step as soon as it is decided; ``reference`` as in ``solve``.

        Closing the iterator stops the models and frees their memory of the question. Raises UserError as
        ``solve`` does.
        """
        problem = self._problem(question, system, reference)
        written: list[int] = []
        with closing(self._solver.stream(problem)) as rounds:
            yield from self._steps(problem, _noted(rounds, written))
        self._solver.remember(problem, written)

    def close(self) -> None:
        self._closed = True
        self._solver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _problem(
        self, question: str, system: str | None, reference: str | Sequence[str]
    ) -> BenchmarkProblem:
        if self._closed:
            raise UserError("this pair is closed: load it again")
        # the same name as in ``semspec.run prompt=``, since seeds depend on it
        references = (reference,) if isinstance(reference, str) else tuple(reference)
        return BenchmarkProblem("prompt", question, system=system, references=references)

    def _steps(self, problem: BenchmarkProblem, rounds: Iterable[Round]) -> Iterator[Step]:
        solver = self._solver
        by_token = solver.config.split == "token"
        parts = pieces(
            (unit for done in rounds for unit in self._units(done)),
            solver.said,
            "tokens" if by_token else "steps",
        )
        prompt, _ = solver.text.prompt(problem.question, problem.system)
        return _joined(parts, opening(prompt), by_token)

    def _units(self, done: Round) -> Iterator[Round]:
        """Split what the target wrote without waiting for ends of units into units."""
        if done.drafted or done.handed_ends or not done.handed:
            yield done
            return
        solver = self._solver
        boundary = solver.splitter.open(solver.text.piece, solver.config.longest_unit)
        start = 0
        for count, token in enumerate(done.handed, 1):
            over = boundary.feed(token)
            if over is not None:
                yield Round(handed=done.handed[start : count + over])
                start = count + over
        if done.handed[start:]:
            yield Round(handed=done.handed[start:])


def _noted(rounds: Iterable[Round], written: list[int]) -> Iterator[Round]:
    """Yield the rounds, adding their tokens to ``written``."""
    for done in rounds:
        written += done.tokens
        yield done


def _joined(parts: Iterable[Piece], opened: str, each: bool) -> Iterator[Step]:
    """Join pieces to steps; with ``each``, every piece is a step (tokens as units)."""
    text, score, rejected = opened, None, list[str]()
    author: Writer = "target"
    for piece in parts:
        if piece.rejected:
            rejected.append(piece.text)
            score = piece.score if score is None else score
            continue
        text, author = text + piece.text, piece.writer if piece.text else author
        score = score if piece.score is None else piece.score
        if text and (piece.ends or each):
            yield Step(text, author, score, "".join(rejected))
            text, score, rejected = "", None, []
    if text:
        yield Step(text, author, score, "".join(rejected))


def load(*overrides: str, **options: Any) -> Pair:
    """Load a pair of models; by default the embedded pair.

    Takes the options of ``python -m semspec.run``, as keywords or as on its command line:
    ``load("model.path=/models/target", draft="r1-1.5b", accept="logprob", threshold=-4)``. Raises UserError,
    with one line, for an option that does not exist or models that cannot be loaded.
    """
    given = [*overrides, *(f"{name}={_written(value)}" for name, value in options.items())]
    arguments = expand_shorthands(repeatable(with_recommended(given)[0]))
    check_arguments(arguments, sweep=False)
    return Pair(build(compose(arguments)))


def _written(value: object) -> str:
    """Format a value as on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    text = str(value)
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else quoted(text)
