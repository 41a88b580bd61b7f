"""Experiments whose jobs train probes, such as SemanticSpec's figure 2 (states of steps, by semantic probability).

Each job runs ``python -m semspec.train_probe`` in its own folder, or in the one that the recipe names. A killed job
resumes; a finished one is not run again. The result is one page with every probe's ``states.svg``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from semspec.cli.plan import Plan
from semspec.cli.plan_training import plan_training
from semspec.errors import UserError
from semspec.jobs.experiments import Experiment, Job, slug
from semspec.report.progress import Steps
from semspec.report.svg import escape
from semspec.report.terminal import Screen
from semspec.storage.files import read_json, write_json
from semspec.training.probes.compose import build
from semspec.training.probes.settings import ProbeConfig

STATES = "states.svg"
SHOWN = ("samples", "tokens", "time")  # of a training's plan
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="font-family: sans-serif"><h1>{title}</h1>
<div style="display: flex; flex-wrap: wrap; gap: 1.5em">
{figures}
</div></body></html>
"""


@dataclass(frozen=True)
class Training:
    """One probe of an experiment: its options, and the file that marks it as done."""

    job: Job
    arguments: tuple[str, ...]
    config: ProbeConfig
    file: Path

    @property
    def states(self) -> Path:
        return Path(self.config.out) / STATES

    @property
    def made(self) -> dict[str, Any] | None:
        """What was measured; None if it is not finished or was trained with other options."""
        held = read_json(self.file)
        same = held is not None and held.get("arguments") == list(self.arguments)
        return held if same and self.states.exists() else None


def trainings(todo: Sequence[Job], folder: Path) -> list[Training]:
    """Return the trainings of all jobs; raise UserError for options that do not fit, before any training."""
    found = []
    for job in todo:
        place = folder / job.folder
        given = {option.partition("=")[0] for option in job.options}
        own = {"folder": place / "samples", "out": place / "probe"}
        added = (f"{name}={path}" for name, path in own.items() if name not in given)
        arguments = (*job.options, *added)
        config = build(arguments)
        if not config.features.pooling:
            raise UserError(f"{job}: these features read no states, and the figure shows states: give features=paper")  # fmt: skip
        found.append(Training(job, arguments, config, place / "figure.json"))
    if not found:
        raise UserError("only= matches nothing in this experiment: plan=true lists all of it")
    return found


def _plans(listed: Sequence[Training]) -> list[Plan]:
    return [plan_training(one.config, one.arguments) for one in listed]


def plan_of(experiment: Experiment, scale: str, listed: Sequence[Training]) -> list[Text]:
    """List every training: its command, and at the real scale its cost."""
    lines = [Text(experiment.title, "bold")]
    for one in listed:
        done = " (done)" if one.made else ""
        lines.append(Text(f"{one.job}{done}: {shlex.join(command(one))}"))
        if scale == "real":
            told = plan_training(one.config, one.arguments).lines
            lines += [Text(f"  {label}: {text}", "dim") for label, text in told if label in SHOWN]
    return lines


def command(one: Training) -> list[str]:
    """Return the command line that runs one training by itself."""
    return ["python", "-m", "semspec.train_probe", *one.arguments]


def check(listed: Sequence[Training]) -> None:
    """Raise UserError for the first unfinished training that could not start here."""
    for plan in _plans([one for one in listed if not one.made]):
        if plan.refused is not None:
            raise plan.refused


def carry_out(listed: Sequence[Training], console: Screen) -> int:
    """Run the unfinished trainings; return 1 if one failed, else 0."""
    from semspec.training.probes.pipeline import make  # slow: imports torch

    failed = 0
    for one in listed:
        if one.made:
            continue
        console.say(f"{one.job}")
        try:
            probe, _ = make(one.config, Steps(console, one.config.quiet))
        except UserError as error:
            failed = 1
            console.say(f"{one.job}: failed: {error}")
            continue
        held = {"arguments": list(one.arguments), "metrics": probe.config["metrics"]}
        write_json(one.file, held)
    return failed


def collect(listed: Sequence[Training]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures of finished trainings by block, row and column."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in listed:
        if (held := one.made) is None:
            continue
        told = {**held, "problems": one.config.problems, "states": str(one.states)}
        found.setdefault(one.job.block, {}).setdefault(one.job.row, {})[one.job.column] = told
    return found


def write_page(experiment: Experiment, listed: Sequence[Training], folder: Path) -> Path:
    """Write one page with the plots of all finished trainings; return its file."""
    figures = [
        f"<figure>{one.states.read_text(encoding='utf-8')}<figcaption>{escape(str(one.job))}</figcaption></figure>"
        for one in listed
        if one.made
    ]
    page = folder / f"{slug(experiment.name)}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        PAGE.format(title=escape(experiment.title), figures="\n".join(figures)), encoding="utf-8"
    )
    return page
