"""Let arms take turns on the same problems, and record each problem as it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semspec.config import RunConfig
from semspec.protocols import BenchmarkProblem, Grade
from semspec.report import terminal
from semspec.results import stopped
from semspec.results.by_part import by_part
from semspec.results.records import Mode, OpenRun, Solve, problem_line
from semspec.results.step_truth import accepted_steps
from semspec.solver import Solution, Solver

WARM_UP_TOKENS = 48
AHEAD = 8  # if problems run freely: problems per turn of one mode, times ``concurrency``

Aside = Callable[[Solver, Solution], Mapping[str, Any]]
"""Measures more about a speculative solution, outside its timed part; the result joins the details of its line."""


@dataclass(frozen=True)
class Arm:
    """One run, alone or one of several that take turns."""

    config: RunConfig
    resolved: Mapping[str, Any]
    folder: Path
    about: Mapping[str, Any] | None = None  # which job of a sweep it is


@dataclass
class Lane:
    """A running arm: its open folder and its solver."""

    arm: Arm
    run: OpenRun
    solver: Solver
    ids: frozenset[str]  # of its problems
    solved: dict[str, Solve] = field(default_factory=dict)  # by problem

    def left(self, group: Sequence[BenchmarkProblem]) -> list[BenchmarkProblem]:
        """Return which problems of a group to solve.

        In lockstep, all of them if any, because rounding depends on the batch size. What is already recorded is
        not written twice.
        """
        own = [p for p in group if p.id in self.ids]
        left = [p for p in own if p.id not in self.run.done]
        return left if self.solver.free or not left else own

    def remember(self, group: Sequence[BenchmarkProblem]) -> None:
        """Let the drafter remember a group's answers, in its order.

        They are read from the folder, so that a resumed run remembers the same ones.
        """
        if self.solver.earlier is None:
            return
        for problem in (p for p in group if p.id in self.ids):
            lines = self.run.round_lines(problem.id)
            parts = (line[name] for line in lines for name in ("kept", "written", "handed"))
            self.solver.remember(problem, [token for part in parts for token in part])


def solve_in_turn(
    lanes: Sequence[Lane],
    problems: Sequence[BenchmarkProblem],
    first: BenchmarkProblem,
    console: terminal.Screen,
    aside: Aside | None,
) -> None:
    """Solve problems with every arm, a few at a time; ``first`` is the warm-up.

    The arm that begins rotates, so that none is favoured.
    """
    _warm_up(lanes, first)
    config, is_free = lanes[0].arm.config, lanes[0].solver.free
    total = sum(len(lane.ids) for lane in lanes)
    with terminal.Progress(total, quiet=config.quiet, console=console) as progress:
        for lane in lanes:
            progress.resume(lane.run.problem_lines())
        size = config.concurrency * (AHEAD if is_free else 1)
        for number, start in enumerate(range(0, len(problems), size)):
            group = problems[start : start + size]
            for lane, line in _solve_group(lanes, group, number, progress, aside):
                lane.run.commit(line)
                progress.advance(line)
            for lane in lanes:
                lane.remember(group)


def _solve_group(
    lanes: Sequence[Lane],
    group: Sequence[BenchmarkProblem],
    number: int,
    progress: terminal.Progress,
    aside: Aside | None,
) -> Iterator[tuple[Lane, dict[str, Any]]]:
    """Solve a group of problems with every arm and yield their lines.

    In lockstep, lines come at the end, in the group's order. If problems run freely, each comes as soon as both of its
    modes are done.
    """
    todo = {id(lane): lane.left(group) for lane in lanes}
    active = [lane for lane in lanes if todo[id(lane)]]
    if not active:
        return
    paired = [lane for lane in active if lane.arm.config.plain]
    together = {p.id for lane in paired for p in todo[id(lane)]}
    plain: dict[str, Solve] = {}
    turns: list[tuple[Mode, Sequence[Lane]]] = [("plain", paired)] if paired else []
    turns += [("speculative", [lane]) for lane in active]
    begins = number % len(turns)

    def complete(problem: BenchmarkProblem) -> Iterator[tuple[Lane, dict[str, Any]]]:
        for lane in active:
            alone = plain.get(problem.id) if lane.arm.config.plain else None
            if problem.id in lane.run.done or problem.id not in lane.solved:
                continue
            if alone is not None or not lane.arm.config.plain:
                own = lane.solved.pop(problem.id)
                about = problem.answer, problem.question, problem.attempt_of
                yield lane, problem_line(problem.id, own, alone, *about)

    for mode, those in [*turns[begins:], *turns[:begins]]:
        solver = those[0].solver
        asked = [p for p in group if p.id in together] if mode == "plain" else todo[id(those[0])]
        progress.begin(asked[0].id, mode)
        began = time.perf_counter()
        finished: Iterator[Solution] = solver.solve(asked, mode)
        audits = mode == "speculative" and solver.stop.audits
        ended = list(finished) if audits or not solver.free else []
        finished = iter(ended) if audits or not solver.free else finished
        lockstep = (time.perf_counter() - began) / len(asked) if len(asked) > 1 else None
        unstopped = _unstopped(solver, ended) if audits else {}
        for done in finished:
            wall = done.share if solver.free else lockstep
            solved = _solve(solver, done, wall, aside, unstopped.get(done.problem.id, done))
            if mode == "plain":
                plain[done.problem.id] = solved
            for lane in those:
                if done.problem.id in lane.ids - lane.run.done:
                    lane.run.append_rounds(done.problem.id, mode, done.outcome.rounds)
                    if mode == "speculative":
                        lane.solved[done.problem.id] = solved
            if solver.free:
                yield from complete(done.problem)
    for problem in group:
        yield from complete(problem)


def _unstopped(solver: Solver, ended: Sequence[Solution]) -> dict[str, Solution]:
    """Solve the problems whose thinking was closed again, to their natural end; return solutions by problem."""
    cut = [d.problem for d in ended if any("closed" in r.stop for r in d.outcome.rounds)]
    return {done.problem.id: done for done in solver.unstopped().solve(cut, "speculative")}


def _solve(
    solver: Solver,
    done: Solution,
    wall: float | None,
    aside: Aside | None,
    unstopped: Solution,
) -> Solve:
    """Grade a solution; ``unstopped``: the same problem without a stop, or ``done`` itself."""
    config = solver.config
    grade = config.benchmark.grade(done.problem, done.text)
    more: dict[str, Any] = {}
    if done.mode == "speculative":
        asked = config.accept.asked_risk()
        found = asked and accepted_steps(done.outcome, done.text, grade, solver.said)
        more = {**asked, **found} if found else {}
        more |= aside(solver, done) if aside else {}
        if config.benchmark.by_part:
            more |= by_part(done.outcome.rounds, solver.text.piece)
    if not solver.stop.plain:
        more |= _stops(solver, done, grade, unstopped)
    if more:
        grade = replace(grade, details={**grade.details, **more})
    return Solve.from_outcome(done.outcome, done.text, grade, wall)


def _stops(solver: Solver, done: Solution, grade: Grade, unstopped: Solution) -> Mapping[str, Any]:
    """Count the tokens of the thinking, and what a stop saved and changed."""
    found: dict[str, Any] = {stopped.THINKING: solver.thought(done)}
    if done.mode != "speculative":
        return found
    found |= stopped.counted(done.outcome)
    if (asked := solver.stop.asked_risk()) is not None:
        found[stopped.ASKED] = float(asked)
    if solver.stop.audits:
        natural = grade
        if unstopped is not done:
            natural = solver.config.benchmark.grade(done.problem, unstopped.text)
        tokens = solver.thought(unstopped)
        found |= stopped.compared(grade.correct, natural.correct, tokens)
    return found


def _warm_up(lanes: Sequence[Lane], problem: BenchmarkProblem) -> None:
    """Write a few uncounted tokens with each arm, because first passes allocate and compile."""
    turns: list[tuple[Mode, Solver]] = [("plain", lanes[0].solver)]
    turns += [("speculative", lane.solver) for lane in lanes]
    for mode, solver in turns:
        budget = min(WARM_UP_TOKENS, solver.config.max_new_tokens)
        for _ in solver.solve([problem], mode, budget=budget):
            pass
