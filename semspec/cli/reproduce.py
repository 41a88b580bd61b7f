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

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from semspec import config
from semspec.cli import trained
from semspec.cli.audit import audit
from semspec.cli.plan import before
from semspec.errors import UserError
from semspec.jobs import experiments, sweep
from semspec.jobs.experiments import NAMES, SHARES, Cell, Experiment, Job, Scale, jobs, load, slug
from semspec.jobs.job import ARM, left_out, resolve
from semspec.jobs.job import Job as Run
from semspec.jobs.launchers import options_of
from semspec.jobs.options import split_hydra, take
from semspec.report import arms
from semspec.report.page import decoder
from semspec.report.progress import Steps
from semspec.report.rounds import read_rounds
from semspec.report.runs import read_run
from semspec.report.terminal import DASH, Screen, number, open_console, percent, seconds, table_of
from semspec.results import paired
from semspec.results.records import RunFolder
from semspec.storage import foreign, provenance
from semspec.storage.files import write_json

OWN = ("experiment", "scale", "plan", "show", "only", "json", "hydra.run.dir")
AUDIT = "audit.json"
SIGNALS = {"auroc", "kept_right", "kept_wrong"}  # columns computed from the rounds
Record = dict[str, Any]
Results = dict[str, dict[str, dict[str, Mapping[str, Any]]]]
"""The results of finished runs by block, row and column."""


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
            raise UserError(f"'{word}': beside experiment= only options (name=value) can be given")
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
            f"experiment={experiment.name} {'trains' if experiment.trains else 'audits'} here, one job after the other: leave"
            f" {' '.join(launching)} out"
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
    for line in [*trained.plan_of(experiment, scale, trainings), *_notes(experiment.scale(scale))]:
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
            kept.append((job, resolve(_run(job))[0]))
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


def _run(job: Job, command: str = "") -> Run:
    return Run(job.folder.as_posix(), job.options, command)


def sweep_jobs(experiment: Experiment, todo: Sequence[Job]) -> list[Run]:
    """Return the jobs of a sweep: one for each run, or one for each block and column with the rows as its arms."""
    if not experiment.arms:
        return [_run(job) for job in todo]
    grouped: dict[str, list[Run]] = {}
    for job in todo:
        grouped.setdefault(f"{slug(job.block)}, {slug(job.column)}", []).append(_run(job, ARM))
    asked = ("divergence",) if experiment.divergence else ()
    command = "semspec.cli.arms"
    return [Run(name, asked, command, arms=tuple(runs)) for name, runs in grouped.items()]


def record_arms(experiment: Experiment, scale: str, todo: Sequence[Job], folder: Path) -> Record:
    """Return the figures of arms for a file: rows by block, over all problems solved so far."""
    solved: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    absent: dict[str, str] = {}
    signals: dict[tuple[str, str], dict[str, float | None]] = {}
    several = len(experiment.scale(scale).columns) > 1
    for job in todo:
        arm = _run(job, ARM)
        if why := left_out(arm, folder):
            absent[f"{job.block}/{job.row}"] = why
        block = f"{job.block} / {job.column}" if several else job.block
        rows = solved.setdefault(block, {paired.PLAIN: {}})
        for line in RunFolder(folder / arm.name).problem_lines():
            rows.setdefault(job.row, {})[line["id"]] = line
            if line["plain"]:
                rows[paired.PLAIN].setdefault(line["id"], line["plain"])
        if SIGNALS & set(experiment.table) and rows.get(job.row):
            signals[block, job.row] = signal(folder / arm.name)
    tables = {
        block: paired.rows(rows, experiment.baseline, experiment.rivals, experiment.floor)
        for block, rows in solved.items()
        if rows.get(experiment.baseline)
    }
    for (block, name), found in signals.items():
        for row in tables.get(block, ()):
            if row["config"] == name:
                row.update(found)
    record = {"experiment": experiment.name, "provenance": provenance.collect()}
    return {**record, "left_out": absent, **tables}


def signal(folder: Path) -> dict[str, float | None]:
    """Measure how well a rule tells right drafted steps from wrong ones, where it is known which are right.

    AUROC is the chance that the rule scores a right step above a wrong one, over the steps that it scored. The other
    two are the shares of right and of wrong steps that it kept.
    """
    run = read_run(folder)
    questions = {line["id"]: line.get("question") or "" for line in run.problem_lines()}
    found = read_rounds(run, questions, (), decoder(run)[0])
    return {
        "auroc": found.auroc(),
        "kept_right": found.kept_share(right=True),
        "kept_wrong": found.kept_share(right=False),
    }


def _audit(todo: Sequence[Job], folder: Path, console: Screen) -> int:
    """Run ``semspec.audit`` for each job without a result file; return 1 if one failed, else 0."""
    failed = 0
    for job in todo:
        file = folder / job.folder / AUDIT
        arguments = [*job.options, f"out={file}"]
        if (held := _audited(file)) and held["arguments"] == arguments:
            continue
        console.say(f"{job}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            audit(arguments, Steps(console))
        except UserError as error:
            failed = 1
            console.say(f"{job}: failed: {error}")
    return failed


def _audited(file: Path) -> dict[str, Any] | None:
    """Return an audit's figures, None if its file is missing."""
    try:
        found = foreign.read_object(file, way_out="it is no audit: remove it")
    except foreign.MissingFileError:
        return None
    if not {"arguments", "kept", "problems"} <= set(found):
        raise UserError(f"{file} is no audit: remove it")
    return found


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
        return resolve(_run(job))
    except UserError as error:
        raise UserError(f"{job}: {error}") from error


def collect(experiment: Experiment, todo: Sequence[Job], folder: Path) -> Results:
    """Collect the finished runs; the target's row takes its figures from the first run that measured it."""
    found: Results = {}
    for job in todo:
        place = folder / job.folder
        result = _audited(place / AUDIT) if experiment.audits else RunFolder(place).figures()
        if not result:
            continue
        rows = found.setdefault(job.block, {})
        rows.setdefault(job.row, {})[job.column] = result
        if experiment.target and result.get("plain"):
            rows.setdefault(experiment.target, {}).setdefault(job.column, result)
    return found


def _cell(experiment: Experiment, row: str, result: Mapping[str, Any] | None) -> Cell:
    read = experiments.target_alone if row == experiment.target else experiments.cell_of
    return read(result, experiment.metrics) if result else {}


def record(experiment: Experiment, scale: str, found: Results) -> dict[str, Any]:
    """Return the paper's figures and ours for a file."""

    def of(row: str, result: Mapping[str, Any]) -> dict[str, Any]:
        mode = result["plain"] if row == experiment.target else result
        held = {"figures": _cell(experiment, row, result), "problems": mode["problems"]}
        if experiment.command != "run":
            return held | ({"states": result["states"]} if experiment.trains else {})
        speed = None if mode is not result else result["speedup_interval"]
        intervals = {"pass_at_1_interval": mode["pass_at_1_interval"], "speedup_interval": speed}
        return held | intervals

    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "scale": scale,
        "metrics": experiment.metrics,
        "columns": list(experiment.real.columns),
        "paper": {
            block: {row: experiment.published(block, row) for row in rows}
            for block, rows in experiment.figures.items()
        },
        "here": {
            block: {row: {c: of(row, r) for c, r in cells.items()} for row, cells in rows.items()}
            for block, rows in found.items()
        },
    }


# ---- what is shown --------------------------------------------------------------------------------


def plan_of(
    experiment: Experiment, scale: str, todo: Sequence[Job], first: Sequence[str] = ()
) -> list[Text]:
    """Describe what will be run, what it costs, and the commands to run ``first``."""
    setting = experiment.scale(scale)
    lines = [Text(experiment.title, "bold")]
    lines += [Text(f"first: {command}", "dim") for command in dict.fromkeys([*setting.first, *first])]  # fmt: skip
    if scale == "real":
        for block in setting.blocks:
            known = [job.hours for job in todo if job.block == block]
            lines.append(Text(f"{block}: {len(known)} runs, {_hours(known)}"))
        lines.append(
            Text(
                "GPU hours follow from the paper's seconds per problem, on its hardware and engine; they include"
                " the target's interleaved runs but not probes; engine=hf takes longer.",
                "dim",
            )
        )
        hours = _hours([job.hours for job in todo])
        lines.append(Text(f"in all: {len(todo)} runs, {hours}", "bold"))
    else:
        turns = ", those of a block in turn" if experiment.arms else ""
        lines.append(Text(f"{len(todo)} runs on {experiment.models}{turns}"))
    return lines + _notes(setting)


def _notes(setting: Scale) -> list[Text]:
    return [Text(f"note: {note}", "dim") for note in setting.notes]


def _hours(known: Sequence[float | None]) -> str:
    if None in known:
        return "GPU hours unknown (the paper gives no times)"
    return f"about {sum(filter(None, known)):,.0f} GPU hours"


def beside(experiment: Experiment, scale: str, found: Results) -> RenderableType:
    """Return the paper's table beside ours for each block; our other blocks follow the first one's."""
    setting = experiment.scale(scale)
    names = [*setting.rows, *(row for rows in experiment.figures.values() for row in rows)]
    rows = list(dict.fromkeys(names))

    def measured(block: str) -> Table:
        known = [(row, found[block][row]) for row in rows if row in found[block]]
        cells = {r: [_cell(experiment, r, own.get(c)) for c in setting.columns] for r, own in known}
        return _table(f"here: {block}", experiment, list(setting.columns), cells)

    others = [block for block in found if block not in experiment.figures]
    parts: list[RenderableType] = []
    for block, published in experiment.figures.items():
        cells = {row: experiment.published(block, row) for row in rows if row in published}
        tables = [_table(f"paper: {block}", experiment, list(experiment.real.columns), cells)]
        if block in found:
            tables.append(measured(block))
        while others:
            tables.append(measured(others.pop(0)))
        parts.append(Columns(tables, padding=(0, 3)))
    parts += [measured(block) for block in others]
    parts += [Text(f"paper: {claim}", "dim") for claim in experiment.claims]
    sizes = {r["problems"] for b in found.values() for row in b.values() for r in row.values()}
    if sizes and min(sizes) < 100 and not experiment.trains:  # trained probes have no intervals
        note = (
            "problems per cell: small differences may be chance; the file below has the intervals"
        )
        parts.append(Text(f"note: {min(sizes)} {note}", "dim"))
    return Group(*parts)


def _table(
    title: str, experiment: Experiment, columns: Sequence[str], cells: Mapping[str, Sequence[Cell]]
) -> Table:
    table = table_of("", "", *columns, words=2, title=title, title_justify="left")
    for column in table.columns[2:]:
        column.no_wrap = True
    metrics = experiment.table
    for row, listed in cells.items():
        shown = ("\n".join(_figure(m, cell.get(m)) for m in metrics) for cell in listed)
        table.add_row(row, Text("\n".join(NAMES[m] for m in metrics), "dim"), *shown)
    return table


def _figure(metric: str, value: float | None) -> str:
    if metric == "latency" and value is not None:
        return seconds(value) if value < 10 else f"{value:.1f}"
    if metric.startswith("speedup"):
        return number(value, 2, "x")
    if metric in ("draft_to_verify", "pruned") or metric.startswith("kept.all kept.coverage"):
        return DASH if value is None else f"{100 * value:.1f} %"
    if metric.startswith(SHARES) and metric != "reuse.length":
        return percent(value)
    if metric.startswith("kept."):
        return number(value, 4)
    if metric.endswith(".rows"):
        return number(value, 0)
    return number(value, 3 if metric == "pass_at_1" else 1 if "second" in metric else 2)
