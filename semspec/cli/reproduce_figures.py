"""Collect the figures of an experiment's runs, and record them beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from semspec.errors import UserError
from semspec.jobs import experiments
from semspec.jobs.experiments import Cell, Experiment, Job
from semspec.jobs.job import ARM, left_out
from semspec.report.page import decoder
from semspec.report.rounds import read_rounds
from semspec.report.runs import read_run
from semspec.results import paired
from semspec.results.records import RunFolder
from semspec.storage import foreign, provenance

AUDIT = "audit.json"
SIGNALS = {"auroc", "kept_right", "kept_wrong"}  # columns computed from the rounds
Record: TypeAlias = dict[str, Any]
Results: TypeAlias = dict[str, dict[str, dict[str, Mapping[str, Any]]]]
"""The results of finished runs by block, row and column."""


def collect(experiment: Experiment, todo: Sequence[Job], folder: Path) -> Results:
    """Collect the finished runs; the target's row takes its figures from the first run that measured it."""
    found: Results = {}
    for job in todo:
        place = folder / job.folder
        result = audited(place / AUDIT) if experiment.audits else RunFolder(place).figures()
        if not result:
            continue
        rows = found.setdefault(job.block, {})
        rows.setdefault(job.row, {})[job.column] = result
        if experiment.target and result.get("plain"):
            rows.setdefault(experiment.target, {}).setdefault(job.column, result)
    return found


def audited(file: Path) -> dict[str, Any] | None:
    """Return an audit's figures, None if its file is missing."""
    try:
        found = foreign.read_object(file, way_out="it is not an audit's result: remove it")
    except foreign.MissingFileError:
        return None
    if not {"arguments", "kept", "problems"} <= set(found):
        raise UserError(f"{file} is not an audit's result: remove it")
    return found


def cell(experiment: Experiment, row: str, result: Mapping[str, Any] | None) -> Cell:
    read = experiments.target_alone if row == experiment.target else experiments.cell_of
    return read(result, experiment.metrics) if result else {}


def record(experiment: Experiment, scale: str, found: Results) -> dict[str, Any]:
    """Return the paper's figures and ours for a file."""

    def of(row: str, result: Mapping[str, Any]) -> dict[str, Any]:
        mode = result["plain"] if row == experiment.target else result
        held = {"figures": cell(experiment, row, result), "problems": mode["problems"]}
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


def record_arms(experiment: Experiment, scale: str, todo: Sequence[Job], folder: Path) -> Record:
    """Return the figures of arms for a file: rows by block, over all problems solved so far."""
    solved: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    absent: dict[str, str] = {}
    signals: dict[tuple[str, str], dict[str, float | None]] = {}
    several = len(experiment.scale(scale).columns) > 1
    for job in todo:
        arm = job.work(ARM)
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
