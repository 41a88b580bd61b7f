"""Run one or several arms on the same problems in turn, and record each problem as it ends.

An ordinary run has two modes: the target alone ("plain") and the method ("speculative"). Several runs that differ only
in the method can be arms of one process: models are loaded once, the target alone solves each problem once for all
arms, and the arms take turns in rotating order. Each run has its own folder, as it would alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rich.text import Text as Styled

from semspec.config import RunConfig, free, recorded
from semspec.engines.pool import Engines
from semspec.errors import UserError
from semspec.in_turn import Arm, Aside, Lane, solve_in_turn
from semspec.loading.settled import settle
from semspec.models.text import Text
from semspec.protocols import BenchmarkProblem
from semspec.report import terminal
from semspec.report.page import REPORT, write_run
from semspec.report.transcript import Transcript, pieces
from semspec.results import metrics
from semspec.results.attempts import attempted
from semspec.results.records import OpenRun, OtherWeightsError, RunFolder
from semspec.solver import Solver
from semspec.storage import provenance
from semspec.storage.screen import visible

SERVERS = "servers"  # subfolder for the logs of servers that a run starts
SHARED = (  # options that all arms share: everything that plain solutions depend on
    "model", "engine", "benchmark", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "concurrency",
    "seed", "prompt", "attempts",
)  # fmt: skip


def execute(
    config: RunConfig,
    resolved: Mapping[str, Any],
    folder: Path,
    console: terminal.Screen | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run or resume one run in ``folder``; return the content of result.json.

    With ``job``, one of several, only progress is shown, and the caller prints the tables.
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
    """Run or resume several runs, whose arms take turns, to their ends.

    ``grow``: a run that has fewer problems than it is now asked for solves the missing ones. ``left_out`` collects the
    errors of arms that cannot run here, by folder, while the others go on; without it, such an error is raised. Also
    raises UserError if no arm can run, if arms differ in more than the method, or if one was begun with other weights.
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
                started["machine"]["threads"] = None  # known only after the engines have set them
                run = stack.enter_context(_open(arm, problems, started, grow))
                if run.result is None:
                    begun.append((arm, run, started["started"]))
                elif arm.about is None:
                    console.say(f"{arm.folder}: finished before; this is its result", "dim")
            told: dict[Path, Any] = {}  # measured costs and worth of drafts, by folder
            lacking = _solve_all(begun, problems, console, aside, told)
            if lacking and (left_out is None or len(lacking) == len(arms)):
                raise next(iter(lacking.values()))
        except UserError:
            for _, run, _ in begun:
                run.discard()
            raise
        for arm, run, began in begun:
            if arm.folder in lacking:
                run.discard()
            else:
                (arm.folder / REPORT).unlink(missing_ok=True)  # it may be of fewer problems
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
                f"{first.folder} and {arm.folder} run interleaved, but differ in {name}:"
                " give both the same value, or run them separately"
            )


def _asked(arm: Arm, problems: Sequence[BenchmarkProblem]) -> list[BenchmarkProblem]:
    """Return what an arm has to solve: its own problems, with every attempt."""
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
    # collect again: now the threads are known, and the load is that of the run
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
    """Solve what is left; return the errors of arms that cannot run, by folder.

    ``told`` receives the measured costs, by folder.
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
                lanes.append(Lane(arm, run, solver, own))
        if lanes:
            settle()
            every = attempted(problems, lanes[0].arm.config.attempts)
            solve_in_turn(lanes, every, next(iter(todo.values())), console, aside)
            told |= {lane.arm.folder: lane.solver.told_costs() for lane in lanes}
    return lacking


@contextmanager
def _left_out(arm: Arm, lacking: dict[Path, UserError]) -> Iterator[None]:
    """Keep the error of an arm that cannot run, so that the others go on."""
    try:
        yield
    except OtherWeightsError:
        raise  # its earlier figures are from other weights: do not go on without it
    except UserError as error:
        lacking[arm.folder] = error


def _measure(
    arm: Arm,
    run: OpenRun,
    solver: Solver,
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    """Let the rule measure what it needs, or use what the run has recorded; print what it decides by."""

    def say(line: str) -> None:
        if line and not arm.config.quiet:
            console.say(line, "dim")

    solver.measure(problems, run.measured, say)
    run.record_measured(solver.rule.measured())
    say(solver.rule.origin())
    say(solver.stop.origin())


def write_page(run: RunFolder, console: terminal.Screen) -> None:
    """Write a run's page if it has none; if that fails, only say so, because the run itself is finished."""
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
        except UserError as error:  # the models may be gone after the run
            console.say(f"no transcript: {error}", "dim")
    console.print(terminal.result_table(result, budget=config.max_new_tokens))
    console.say(f"results: {run.path}, report: {run.path / REPORT}", "dim")


def _show_transcript(
    config: RunConfig,
    run: RunFolder,
    problems: Sequence[BenchmarkProblem],
    console: terminal.Screen,
) -> None:
    """Show one problem, preferably one in which both models wrote."""

    lines = {line["id"]: line for line in run.problem_lines()}
    there = [p for p in problems if p.id in lines]
    both = (p for p in there if 0 < lines[p.id]["kept_units"] < lines[p.id]["drafted_units"])
    shown = next(both, there[0] if there else None)
    if shown is None:  # all lines are damaged
        return
    text = Text(str(config.model.fetch(config.engine.holds_weights)))
    title = visible(shown.id, newline=" "), "bold"
    console.print(Styled.assemble("\n", title, "  ", visible(shown.question)))
    rounds = run.round_lines(shown.id, "speculative")

    parts = pieces(rounds, text.readable, "tokens" if config.split == "token" else "steps")
    console.print(Transcript(parts))
