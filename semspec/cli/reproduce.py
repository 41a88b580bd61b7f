"""``python -m semspec.run experiment=PAPER/TABLE``: run an experiment and print its table beside the paper's.

experiment=semanticspec/table4 plan=true     what would be run, and what it costs
experiment=semanticspec/table4 scale=tiny    the same comparison on the embedded pair
experiment=ours/steps problems=100           a comparison of our own; a later run with more problems adds to it
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from semspec import config
from semspec.cli import trained
from semspec.cli.audit import audit
from semspec.cli.plan import before
from semspec.cli.reproduce_figures import AUDIT, audited, collect, record, record_arms
from semspec.cli.reproduce_tables import beside, notes, plan_of
from semspec.errors import UserError
from semspec.jobs import sweep
from semspec.jobs.experiments import Experiment, Job, jobs, load, slug
from semspec.jobs.job import ARM, resolve
from semspec.jobs.job import Job as Work
from semspec.jobs.launchers import options_of
from semspec.jobs.options import split_hydra, take
from semspec.report import arms
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.storage.files import write_json

OWN = ("experiment", "scale", "plan", "show", "only", "json", "hydra.run.dir")


def asked(arguments: Sequence[str]) -> bool:
    """Return True if a command line asks for an experiment."""
    return any(argument.partition("=")[0] == "experiment" for argument in arguments)


def main(arguments: Sequence[str]) -> int:
    """Run an experiment; return the exit code."""
    given, rest = take(arguments, OWN)
    launching, extra = split_hydra(rest)
    launcher, options = options_of(launching)
    if {"-m", "--multirun"} & set(extra):
        raise UserError(
            "an experiment is a sweep already: leave -m out, and give one command per setting"
        )
    for word in extra:
        if "=" not in word or word.startswith(("-", "+", "~")):
            raise UserError(f"'{word}': only options (name=value) can follow experiment=")
    switches = {name: given.get(name, "false").lower() for name in ("plan", "show")}
    for name, value in switches.items():
        if value not in ("true", "false"):
            raise UserError(f"{name}={given[name]}: give true or false")
    experiment = load(given["experiment"])
    scale = given.get("scale", experiment.scales[0])
    if scale not in experiment.scales:
        raise UserError(f"scale={scale}: give {' or '.join(experiment.scales)}")
    if launching and (experiment.audits or experiment.trains):
        raise UserError(
            f"experiment={experiment.name} {'trains' if experiment.trains else 'audits'} on"
            f" this machine, one job after the other: leave {' '.join(launching)} out"
        )
    only = [a.partition("=")[2] for a in arguments if a.startswith("only=")]
    wanted = list(jobs(experiment, scale, extra, only))
    name = experiment.runs_of or experiment.name
    folder = Path(given.get("hydra.run.dir") or f"runs/experiments/{name}-{scale}")
    if experiment.trains:
        return _train(experiment, scale, wanted, folder, switches, given.get("json", ""))
    todo, built, lacking = _fitting(experiment, wanted)
    made = built[0]
    console = open_console(quiet=made.quiet)
    for line in plan_of(experiment, scale, todo, [c for each in built for c in before(each)]):
        console.print(line, soft_wrap=True)  # commands can be copied
    for why in lacking:
        console.say(f"not run: {why}")
    if switches["plan"] == "true":
        return 0
    if scale == "tiny":  # takes minutes; for real models the plan prints the command instead
        _make_first(experiment.tiny.first, console)
    code = 0
    if switches["show"] == "true":
        pass  # show only the runs that exist
    elif experiment.audits:
        code = _audit(todo, folder, console)
    else:
        runs = sweep_jobs(experiment, todo)
        sweep.carry_out(runs, folder, console, launcher, options)
        code = sweep.ended(runs, folder)
    shown: RenderableType
    if experiment.arms:
        held = record_arms(experiment, scale, todo, folder)
        held["seed"] = getattr(made.benchmark, "seed", None)
        tables = {k: rows for k, rows in held.items() if isinstance(rows, list)}
        shown = Group(*(arms.table(rows, experiment.table, k) for k, rows in tables.items()))
    else:
        found = collect(experiment, todo, folder)
        held, shown = record(experiment, scale, found), beside(experiment, scale, found)
        held |= {"left_out": lacking} if lacking else {}
    file = _keep(held, experiment, folder, given.get("json", ""))
    if experiment.arms and not console.is_terminal:
        console.width = 160  # its tables are wider than the papers'
    console.print(shown)
    console.say(f"results: {file}", "dim")
    return code


def _keep(held: Mapping[str, Any], experiment: Experiment, folder: Path, also: str) -> Path:
    """Write the figures into the folder, and into the file given by ``json=``; return the last file."""
    files = [folder / f"{slug(experiment.name)}.json", *([Path(also)] if also else [])]
    for file in files:
        write_json(file, held)
    return files[-1]


def _train(
    experiment: Experiment,
    scale: str,
    todo: Sequence[Job],
    folder: Path,
    switches: Mapping[str, str],
    json: str,
) -> int:
    """Train the missing probes and show the states of all beside each other; return the exit code."""
    trainings = trained.trainings(todo, folder)
    console = open_console(quiet=trainings[0].config.quiet)
    for line in [*trained.plan_of(experiment, scale, trainings), *notes(experiment.scale(scale))]:
        console.print(line, soft_wrap=True)
    if switches["plan"] == "true":
        trained.check(trainings)
        return 0
    code = 0 if switches["show"] == "true" else trained.carry_out(trainings, console)
    found = trained.collect(trainings)
    file = _keep(record(experiment, scale, found), experiment, folder, json)
    console.print(beside(experiment, scale, found))
    page = trained.write_page(experiment, trainings, folder)
    console.say(f"figure: {page}")
    console.say(f"results: {file}", "dim")
    return code


def _fitting(
    experiment: Experiment, todo: Sequence[Job]
) -> tuple[list[Job], list[config.RunConfig], list[str]]:
    """Return the jobs that can be built, their configurations, and a line for each row that cannot, with the reason.

    If the experiment expects some combinations not to fit (``fitting``), there are no such lines. Raises UserError
    if no job can be built.
    """
    kept: list[tuple[Job, config.RunConfig]] = []
    lacking: dict[tuple[str, str], list[Job]] = {}
    for job in todo:
        try:
            kept.append((job, resolve(job.work())[0]))
        except UserError as error:
            lacking.setdefault((job.row, str(error)), []).append(job)
            if not kept and len(lacking) > len({why for _, why in lacking}):
                break  # two rows fail for one reason: it is not about the rows, so stop here
    if not kept:
        ways = [UserError(f"{those[0]}: {why}") for (_, why), those in lacking.items()]
        raise (ways or [UserError("only= matches nothing in this experiment: plan=true lists all of it")])[0]  # fmt: skip
    named = (
        []
        if experiment.fitting
        else [f"{_places(those)}: {why}" for (_, why), those in lacking.items()]
    )
    return [job for job, _ in kept], [made for _, made in kept], named


def _places(those: Sequence[Job]) -> str:
    """Name the runs of one row: the row and their number, or the only run."""
    return f"{those[0].row} ({len(those)} runs)" if len(those) > 1 else str(those[0])


def sweep_jobs(experiment: Experiment, todo: Sequence[Job]) -> list[Work]:
    """Return the jobs of a sweep: one for each run, or one for each block and column with the rows as its arms."""
    if not experiment.arms:
        return [job.work() for job in todo]
    grouped: dict[str, list[Work]] = {}
    for job in todo:
        grouped.setdefault(f"{slug(job.block)}, {slug(job.column)}", []).append(job.work(ARM))
    asked = ("divergence",) if experiment.divergence else ()
    command = "semspec.cli.arms"
    return [Work(name, asked, command, arms=tuple(runs)) for name, runs in grouped.items()]


def _audit(todo: Sequence[Job], folder: Path, console: Screen) -> int:
    """Run ``semspec.audit`` for each job without a result file; return 1 if one failed, else 0."""
    failed = 0
    for job in todo:
        file = folder / job.folder / AUDIT
        arguments = [*job.options, f"out={file}"]
        if (held := audited(file)) and held["arguments"] == arguments:
            continue
        console.say(f"{job}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            audit(arguments, Steps(console))
        except UserError as error:
            failed = 1
            console.say(f"{job}: failed: {error}")
    return failed


def _make_first(commands: Sequence[str], console: Screen) -> None:
    """Run those of the commands whose ``out=`` is missing."""
    for command in commands:
        words = shlex.split(command)
        named = dict(word.lstrip("-").partition("=")[::2] for word in words[1:])
        made = named.get("out", "")
        if made and Path(made).exists():
            continue
        # a command with folder= finds out by itself what is done
        made = made or named.get("folder", "")
        console.say(f"making {made}")
        shown = subprocess.DEVNULL if console.quiet else None
        if subprocess.run([sys.executable, *words[1:]], stdout=shown, check=False).returncode:
            raise UserError(f"{made} could not be made; run it yourself: {command}")


def build(job: Job) -> tuple[config.RunConfig, dict[str, Any]]:
    """Return a job's configuration: typed, and as it is recorded."""
    try:
        return resolve(job.work())
    except UserError as error:
        raise UserError(f"{job}: {error}") from error
