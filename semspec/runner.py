"""One run: the same problems plainly and speculatively, interleaved, recorded as they end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.text import Text as Styled

from semspec.config import RunConfig, free, recorded
from semspec.errors import UserError
from semspec.models.text import Text
from semspec.protocols import BenchmarkProblem
from semspec.report import terminal
from semspec.report.page import REPORT
from semspec.report.transcript import pieces
from semspec.report.write import write_run
from semspec.results import metrics
from semspec.results.records import Mode, OpenRun, RunFolder, Solve, problem_line
from semspec.results.step_truth import accepted_steps
from semspec.solver import Solution, Solver
from semspec.storage import provenance
from semspec.storage.screen import visible

WARM_UP_TOKENS = 48
AHEAD = 8  # where problems run freely: in one mode, so many times ``concurrency`` before the other


def execute(
    config: RunConfig,
    resolved: Mapping[str, Any],
    folder: Path,
    console: terminal.Screen | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs (or continues) a run in ``folder``; returns what result.json holds.

    One ``job`` of several shows how it goes, and leaves the tables to who started it.
    """
    if config.quiet or console is None:
        console = terminal.open_console(quiet=config.quiet)
    problems = list(islice(config.benchmark.problems(), config.problems))
    started = provenance.collect(config.seed)
    started["machine"]["threads"] = None  # known only when the engines have set them: see below
    resolved = recorded(config, resolved)
    with RunFolder.open(
        folder, resolved, total=len(problems), free=free(config), provenance=started, about=job
    ) as run:
        if run.result is not None and job is None:
            console.say(f"{folder}: finished before; this is its result", "dim")
        if run.result is not None:
            result = run.figures()
            assert result is not None
        else:
            try:
                result = _solve_all(config, problems, run, console)
            except UserError:
                run.discard()
                raise
            # again: the threads are known now, and the load is of the run
            result["provenance"] = provenance.collect(config.seed) | {"started": started["started"]}
            result["concurrency"] = config.concurrency
            run.finish(result)
        if not (folder / REPORT).exists():
            _report(run, console)
        if job is None:
            _show(config, run, result, problems, console)
    return result


def _solve_all(
    config: RunConfig, problems: Sequence[BenchmarkProblem], run: OpenRun, console: terminal.Screen
) -> dict[str, Any]:
    todo = list(run.todo(problems))
    if todo:
        with Solver(config, run.identify) as solver:
            for note in run.notes:
                console.print(note, style="dim", soft_wrap=True, markup=False, highlight=False)
            _warm_up(solver, todo[0], config)
            with terminal.Progress(len(problems), quiet=config.quiet, console=console) as progress:
                progress.resume(run.problem_lines())
                size = config.concurrency * (AHEAD if solver.free else 1)
                solve = _solve_freely if solver.free else _solve_group
                for number, group in enumerate(_groups(problems, size)):
                    if all(problem.id in run.done for problem in group):
                        continue
                    for line in solve(solver, group, run, progress, config, number):
                        run.commit(line)
                        progress.advance(line)
    return metrics.summarise(run.problem_lines(), seed=config.seed)


def _groups(
    problems: Sequence[BenchmarkProblem], size: int
) -> Iterator[Sequence[BenchmarkProblem]]:
    """The problems that are solved beside each other: always the same ones.

    A kill may leave a group half committed. The whole group is solved again then, since rounding
    depends on a batch's size, and what is there already is not written twice.
    """
    for start in range(0, len(problems), size):
        yield problems[start : start + size]


def _solve_group(
    solver: Solver,
    group: Sequence[BenchmarkProblem],
    run: OpenRun,
    progress: terminal.Progress,
    config: RunConfig,
    number: int,
) -> Iterator[dict[str, Any]]:
    """Both modes for a few problems; who goes first alternates, so that neither is favoured."""
    modes = _modes(config, number)
    solved: dict[tuple[str, Mode], Solve] = {}
    for mode in modes:
        progress.begin(group[0].id, mode)
        began = time.perf_counter()
        finished = list(solver.solve(group, mode))
        share = (time.perf_counter() - began) / len(group) if len(group) > 1 else None
        for done in finished:
            if done.problem.id in run.done:
                continue
            run.append_rounds(done.problem.id, mode, done.outcome.rounds)
            solved[done.problem.id, mode] = _solve(solver, done, share)
    for problem in group:
        if problem.id in run.done:
            continue
        yield problem_line(
            problem.id,
            solved[problem.id, "speculative"],
            solved.get((problem.id, "plain")),
            problem.answer,
            problem.question,
        )


def _solve_freely(
    solver: Solver,
    group: Sequence[BenchmarkProblem],
    run: OpenRun,
    progress: terminal.Progress,
    config: RunConfig,
    number: int,
) -> Iterator[dict[str, Any]]:
    """The same over servers, which batch as requests come: nothing hangs on who runs beside whom.

    Only what is not done yet is solved, and a problem is there as soon as its second mode is.
    """
    todo = [problem for problem in group if problem.id not in run.done]
    modes = _modes(config, number)
    plain: dict[str, Solve] = {}
    speculative: dict[str, Solve] = {}
    for mode in modes:
        progress.begin(todo[0].id, mode)
        solved = plain if mode == "plain" else speculative
        for done in solver.solve(todo, mode):
            problem = done.problem
            run.append_rounds(problem.id, mode, done.outcome.rounds)
            solved[problem.id] = _solve(solver, done, done.share)
            if mode == modes[-1]:
                yield problem_line(
                    problem.id,
                    speculative[problem.id],
                    plain.get(problem.id),
                    problem.answer,
                    problem.question,
                )


def _modes(config: RunConfig, number: int) -> list[Mode]:
    modes: list[Mode] = ["plain", "speculative"] if config.plain else ["speculative"]
    return modes[::-1] if number % 2 else modes


def _solve(solver: Solver, done: Solution, wall: float | None) -> Solve:
    config = solver.config
    grade = config.benchmark.grade(done.problem, done.text)
    asked = config.accept.asked_risk() if done.mode == "speculative" else {}
    found = asked and accepted_steps(done.outcome, done.text, grade, solver.said)
    if found:
        grade = replace(grade, details={**grade.details, **asked, **found})
    return Solve.from_outcome(done.outcome, done.text, grade, wall)


def _warm_up(solver: Solver, problem: BenchmarkProblem, config: RunConfig) -> None:
    """A few tokens in each mode that are not counted: first passes allocate and compile."""
    modes: tuple[Mode, ...] = ("plain", "speculative")
    for mode in modes:
        for _ in solver.solve([problem], mode, budget=min(WARM_UP_TOKENS, config.max_new_tokens)):
            pass


def _report(run: RunFolder, console: terminal.Screen) -> None:
    """The page about the run; that it cannot be written makes no finished run fail."""
    try:
        write_run(run.path)
    except UserError as error:
        console.say(f"no report: {error}", "dim")


def _show(
    config: RunConfig,
    run: RunFolder,
    result: Mapping[str, Any],
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    if config.transcript and not config.quiet and problems:
        try:
            _show_transcript(config, run, problems, console)
        except UserError as error:  # a finished run outlives its models
            console.say(f"no transcript: {error}", "dim")
    console.print(terminal.result_table(result))
    console.say(f"results: {run.path}, to be read: {run.path / REPORT}", "dim")


def _show_transcript(
    config: RunConfig,
    run: RunFolder,
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    """One problem in which both wrote, so that there is something to see."""
    lines = {line["id"]: line for line in run.problem_lines()}
    there = [p for p in problems if p.id in lines]
    both = (p for p in there if 0 < lines[p.id]["kept_units"] < lines[p.id]["drafted_units"])
    shown = next(both, there[0] if there else None)
    if shown is None:  # every line is damaged
        return
    text = Text(str(config.model.fetch(config.engine.holds_weights)))
    title = visible(shown.id, newline=" "), "bold"
    console.print(Styled.assemble("\n", title, "  ", visible(shown.question)))
    rounds = run.round_lines(shown.id, "speculative")

    parts = pieces(rounds, text.readable, "tokens" if config.split == "token" else "steps")
    console.print(terminal.transcript(parts))
