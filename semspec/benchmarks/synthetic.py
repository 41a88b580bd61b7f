"""Problems of the embedded world, graded exactly and step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

from semspec import world
from semspec.benchmarks._answers import after_thinking, last_boxed
from semspec.errors import UserError
from semspec.protocols import Benchmark, BenchmarkProblem, Grade
from semspec.registry import register

KINDS: Mapping[str, world.Domain | world.Reuse] = {**world.DOMAINS, **world.TASKS}


@register("benchmark", "synthetic")
@dataclass(frozen=True, kw_only=True)
class Synthetic(Benchmark):
    """The embedded world: chains of residues or weekdays, drawn by seed; every step can be checked."""

    seed_draws = True

    domains: tuple[str, ...] = ("residues", "weekdays")
    seed: int = 2026  # for drawing problems; training used other seeds

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", tuple(self.domains))
        for name in self.domains:
            if name not in KINDS:
                known = ", ".join(KINDS)
                raise UserError(f"benchmark.domains: unknown domain '{name}': choose among {known}")
        if not self.domains:
            raise UserError("benchmark.domains is empty: give at least one, such as [residues]")

    def problems(self) -> Iterator[BenchmarkProblem]:
        """Yield endless problems from the domains in turn, each drawn from a seed of its own."""
        for number, name in enumerate(cycle(self.domains)):
            problem = KINDS[name].make(random.Random(f"{self.seed} {name} {number}"))
            given = (problem.given,) if isinstance(problem, world.ReuseProblem) else ()
            named = f"{name}-{number:04d}"
            yield BenchmarkProblem(named, problem.question, problem.answer, references=given)

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        posed = world.find_problem(problem.question)
        assert posed is not None, problem.question
        found = last_boxed(after_thinking(text))
        before: list[world.Meaning] = []
        steps = world.split_steps(text)
        at = len(text) - sum(map(len, steps))  # after the tag that opens the thinking
        judged: list[tuple[int, int, bool]] = []
        for step in steps:
            meaning, end = world.meaning(posed, step), at + len(step)
            judged.append((at, end, world.is_next(posed, before, meaning)))
            before.append(meaning or ("unreadable",))
            at = end
        details = {
            "steps": len(steps),
            "steps_true": sum(true for _, _, true in judged),
            "steps_unreadable": sum(meaning == ("unreadable",) for meaning in before),
        }
        right = found == problem.answer
        if isinstance(posed, world.ReuseProblem):  # the question asks for the lines
            lines = tuple(meaning[1] for meaning in before if meaning[0] == "line")
            right = right and lines == posed.lines
        return Grade(right, found, details, judged)
