"""Solve the same problems with any number of arms in turn, and record each problem as it ends.

The arms of an ordinary run are the target alone ("plain") and the method ("speculative"). Several runs that differ
in the method alone can be arms of one process: models are loaded once, the target alone solves each problem once for
all of them, and the arms take turns in rotating order. Each run keeps a folder of its own, as it would by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.text import Text as Styled

from semspec.config import RunConfig, free, recorded
from semspec.engines.pool import Engines
from semspec.errors import UserError
from semspec.loading.settled import settle
from semspec.models.text import Text
from semspec.protocols import BenchmarkProblem, Grade
from semspec.report import terminal
from semspec.report.page import REPORT, write_run
from semspec.report.transcript import Transcript, pieces
from semspec.results import metrics, stopped
from semspec.results.attempts import attempted
from semspec.results.by_part import by_part
from semspec.results.records import (
    Mode,
    OpenRun,
    OtherWeightsError,
    RunFolder,
    Solve,
    problem_line,
)
from semspec.results.step_truth import accepted_steps
from semspec.solver import Solution, Solver
from semspec.storage import provenance
from semspec.storage.screen import visible

SERVERS = "servers"  # logs of servers that a run starts, in its folder
WARM_UP_TOKENS = 48
AHEAD = 8  # where problems run freely: in one mode, so many times ``concurrency`` before the other
SHARED = (  # what arms have in common: all that the target alone depends on
    "model", "engine", "benchmark", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "concurrency",
    "seed", "prompt", "attempts",
)  # fmt: skip

Aside = Callable[[Solver, Solution], Mapping[str, Any]]
"""Measures more of a speculative solution, outside its time; it joins the details of its line."""


@dataclass(frozen=True)
class Arm:
    """One run: by itself, or one of several that take turns."""

    config: RunConfig
    resolved: Mapping[str, Any]
    folder: Path
    about: Mapping[str, Any] | None = None  # which job of a sweep it is


@dataclass
class _Lane:
    """An arm under way."""

    arm: Arm
    run: OpenRun
    solver: Solver
    ids: frozenset[str]  # of its problems
    solved: dict[str, Solve] = field(default_factory=dict)  # by problem

    def left(self, group: Sequence[BenchmarkProblem]) -> list[BenchmarkProblem]:
        """Return what of a group is to be solved.

        In lockstep all of it, if anything: rounding depends on a batch's size. What is recorded already is
        not written twice.
        """
        own = [p for p in group if p.id in self.ids]
        left = [p for p in own if p.id not in self.run.done]
        return left if self.solver.free or not left else own

    def remember(self, group: Sequence[BenchmarkProblem]) -> None:
        """Let the drafter keep a group's answers, in its order.

        They are read from the folder, so that a run that resumes has kept the same ones.
        """
        if self.solver.earlier is None:
            return
        for problem in (p for p in group if p.id in self.ids):
            lines = self.run.round_lines(problem.id)
            parts = (line[name] for line in lines for name in ("kept", "written", "handed"))
            self.solver.remember(problem, [token for part in parts for token in part])


def execute(
    config: RunConfig,
    resolved: Mapping[str, Any],
    folder: Path,
    console: terminal.Screen | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run (or continue) one run in ``folder``; return what result.json holds.

    One ``job`` of several shows how it goes, and leaves the tables to who started it.
    """
    if config.quiet or console is None:
        console = terminal.open_console(quiet=config.quiet)
    (run,) = execute_arms([Arm(config, resolved, folder, job)], console)
    result = run.figures()
    assert result is not None, folder
    if job is None:
        _show(config, run, result, list(islice(config.benchmark.problems(), config.problems)), console)  # fmt: skip
    return result


def execute_arms(
    arms: Sequence[Arm],
    console: terminal.Screen,
    *,
    grow: bool = False,
    aside: Aside | None = None,
    left_out: dict[Path, UserError] | None = None,
) -> list[RunFolder]:
    """Run (or continue) runs whose arms take turns, to their ends.

    ``grow``: a run with fewer problems than it is asked for now solves those that are missing. ``left_out`` gets the
    errors of arms that cannot be had here, by folder; the others go on. Raises UserError without it, where
    no arm can be had, where arms differ in more than the method, and where one was begun with other weights.
    """
    for arm in arms[1:]:
        _check_alike(arms[0], arm)
    most = max(arm.config.problems for arm in arms)
    problems = list(islice(arms[0].config.benchmark.problems(), most))
    with ExitStack() as stack:
        begun: list[tuple[Arm, OpenRun, str]] = []
        try:
            for arm in arms:
                started = provenance.collect(arm.config.seed)
                started["machine"]["threads"] = None  # known only when the engines have set them
                run = stack.enter_context(_open(arm, problems, started, grow))
                if run.result is None:
                    begun.append((arm, run, started["started"]))
                elif arm.about is None:
                    console.say(f"{arm.folder}: finished before; this is its result", "dim")
            told: dict[Path, Any] = {}  # what drafts cost and were worth, by folder
            lacking = _solve_all(begun, problems, console, aside, told)
            if lacking and (left_out is None or len(lacking) == len(begun)):
                raise next(iter(lacking.values()))
        except UserError:
            for _, run, _ in begun:
                run.discard()
            raise
        for arm, run, began in begun:
            if arm.folder in lacking:
                run.discard()
            else:
                (arm.folder / REPORT).unlink(missing_ok=True)  # of fewer problems
                _finish(arm.config, run, began, told.get(arm.folder))
        for arm in arms:
            if arm.folder not in lacking:
                write_page(RunFolder(arm.folder), console)
        if left_out is not None:
            left_out |= lacking
    return [RunFolder(arm.folder) for arm in arms]


def _check_alike(first: Arm, arm: Arm) -> None:
    for name in SHARED:
        if getattr(first.config, name) != getattr(arm.config, name):
            raise UserError(
                f"{first.folder} and {arm.folder} are to be solved in turn, but differ in {name}: give both the"
                " same, or measure them in runs of their own"
            )


def _asked(arm: Arm, problems: Sequence[BenchmarkProblem]) -> list[BenchmarkProblem]:
    """Return what an arm is to solve: its own of the problems, every attempt at them."""
    return attempted(problems[: arm.config.problems], arm.config.attempts)


def _open(
    arm: Arm, problems: Sequence[BenchmarkProblem], started: Mapping[str, Any], grow: bool
) -> OpenRun:
    return OpenRun(
        arm.folder,
        recorded(arm.config, arm.resolved),
        total=len(_asked(arm, problems)),
        free=free(arm.config),
        provenance=started,
        about=arm.about,
        grow=grow,
    )


def _finish(config: RunConfig, run: OpenRun, began: str, costs: Any = None) -> None:
    if costs:
        run.record_costs(costs)
    result = metrics.summarise(run.problem_lines(), seed=config.seed)
    # again: the threads are known now, and the load is of the run
    result["provenance"] = provenance.collect(config.seed) | {"started": began}
    result["concurrency"] = config.concurrency
    run.finish(result)


def _solve_all(
    begun: Sequence[tuple[Arm, OpenRun, str]],
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
    aside: Aside | None,
    told: dict[Path, Any],
) -> dict[Path, UserError]:
    """Solve what is left; return why some arms cannot be had, by folder.

    ``told`` gets what was measured of costs, by folder.
    """
    lacking: dict[Path, UserError] = {}
    with ExitStack() as stack:
        logs = begun[0][0].folder / SERVERS if begun else None
        engines = stack.enter_context(Engines(logs, lambda line: console.say(line, "dim")))
        made: list[tuple[Arm, OpenRun, Solver]] = []
        todo: dict[str, BenchmarkProblem] = {}
        for arm, run, _ in begun:
            if not (left := {p.id: p for p in run.todo(_asked(arm, problems))}):
                continue
            with _left_out(arm, lacking):
                made.append((arm, run, Solver(arm.config, run.identify, engines)))
                todo |= left
        for arm, _, solver in made:
            with _left_out(arm, lacking):
                solver.fetch()
        lanes = []
        for arm, run, solver in made:
            if arm.folder in lacking:
                continue
            with _left_out(arm, lacking):
                stack.enter_context(solver).load()
                for note in run.notes:
                    console.say(note, "dim")
                _measure(arm, run, solver, problems[: arm.config.problems], console)
                own = frozenset(p.id for p in _asked(arm, problems))
                lanes.append(_Lane(arm, run, solver, own))
        if lanes:
            settle()
            every = attempted(problems, lanes[0].arm.config.attempts)
            _in_turn(lanes, every, next(iter(todo.values())), console, aside)
            told |= {lane.arm.folder: lane.solver.told_costs() for lane in lanes}
    return lacking


@contextmanager
def _left_out(arm: Arm, lacking: dict[Path, UserError]) -> Iterator[None]:
    """Keep the error of an arm that cannot be had, so that the others go on."""
    try:
        yield
    except OtherWeightsError:
        raise  # its figures so far are of something else: no arm to go on without
    except UserError as error:
        lacking[arm.folder] = error


def _measure(
    arm: Arm,
    run: OpenRun,
    solver: Solver,
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    """Let the rule measure what it needs, or take what the run has recorded; say what it goes by."""

    def say(line: str) -> None:
        if line and not arm.config.quiet:
            console.say(line, "dim")

    solver.measure(problems, run.measured, say)
    run.record_measured(solver.rule.measured())
    say(solver.rule.origin())
    say(solver.stop.origin())


def _in_turn(
    lanes: Sequence[_Lane],
    problems: Sequence[BenchmarkProblem],
    first: BenchmarkProblem,
    console: terminal.Screen,
    aside: Aside | None,
) -> None:
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
    lanes: Sequence[_Lane],
    group: Sequence[BenchmarkProblem],
    number: int,
    progress: terminal.Progress,
    aside: Aside | None,
) -> Iterator[tuple[_Lane, dict[str, Any]]]:
    """Solve a few problems with every arm; who goes first rotates, so that none is favoured.

    In lockstep lines come at the end, in the group's order. Where problems run freely each comes as soon as
    both of its modes are there.
    """
    todo = {id(lane): lane.left(group) for lane in lanes}
    active = [lane for lane in lanes if todo[id(lane)]]
    if not active:
        return
    paired = [lane for lane in active if lane.arm.config.plain]
    together = {p.id for lane in paired for p in todo[id(lane)]}
    plain: dict[str, Solve] = {}
    turns: list[tuple[Mode, Sequence[_Lane]]] = [("plain", paired)] if paired else []
    turns += [("speculative", [lane]) for lane in active]
    begins = number % len(turns)

    def complete(problem: BenchmarkProblem) -> Iterator[tuple[_Lane, dict[str, Any]]]:
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
    """Solve to their natural ends those problems whose thinking was closed; return them by problem."""
    cut = [d.problem for d in ended if any("closed" in r.stop for r in d.outcome.rounds)]
    return {done.problem.id: done for done in solver.unstopped().solve(cut, "speculative")}


def _solve(
    solver: Solver,
    done: Solution,
    wall: float | None,
    aside: Aside | None,
    unstopped: Solution,
) -> Solve:
    """Grade a solution; ``unstopped`` is the one without a stop, or itself."""
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
    """Count the tokens of the thinking, and what a stop has saved and changed."""
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


def _warm_up(lanes: Sequence[_Lane], problem: BenchmarkProblem) -> None:
    """Write a few tokens with each arm that are not counted: first passes allocate and compile."""
    turns: list[tuple[Mode, Solver]] = [("plain", lanes[0].solver)]
    turns += [("speculative", lane.solver) for lane in lanes]
    for mode, solver in turns:
        budget = min(WARM_UP_TOKENS, solver.config.max_new_tokens)
        for _ in solver.solve([problem], mode, budget=budget):
            pass


def write_page(run: RunFolder, console: terminal.Screen) -> None:
    """Write the page about a run that has none; a finished run does not fail where that cannot be done."""
    if (run.path / REPORT).exists():
        return
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
    console.print(terminal.result_table(result, budget=config.max_new_tokens))
    console.say(f"results: {run.path}, to be read: {run.path / REPORT}", "dim")


def _show_transcript(
    config: RunConfig,
    run: RunFolder,
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    """Show one problem in which both models wrote, so that there is something to see."""

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
    console.print(Transcript(parts))
