"""``python -m semspec.build_datastore``: build a corpus that drafters copy from, from texts to artifact.

Texts, then a suffix array (sparse), or the target's states over them, a projection and an index (dense): see
``semspec.training.datastores.build``. Every stage resumes after a kill.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec.artifacts.datastore import Datastore
from semspec.cli.command import run_command
from semspec.jobs.part_jobs import carry_out_parts, divided
from semspec.jobs.parts import Part, split
from semspec.jobs.sweep import Job
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.storage.screen import echo
from semspec.training.datastores.build import folder_of, make
from semspec.training.datastores.settings import HELP, split_options
from semspec.training.datastores.stages import build_part, stages


def result_table(made: Datastore) -> Table:
    table = Table(box=SIMPLE_HEAD)
    figures = {"documents": float(made.config["documents"]), **made.figures()}
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(
        *(f"{v:,.0f}" if v == round(v) and v > 1 else f"{v:.4f}" for v in figures.values())
    )
    return table


def do_part(job: Job, console: Screen) -> None:
    """Build one of several parts, as a launcher's job."""
    (part,), _, rest = split(job.overrides)
    _build_part(rest, part, job.stage, job.about, console)


def _build_part(
    arguments: Sequence[str], part: Part, until: str, about: Mapping[str, Any], console: Screen
) -> None:
    options, config = split_options(arguments)
    steps = Steps(console, config.quiet)
    until = until or stages(options)[-1]
    build_part(config, options, part, folder_of(config, options), until, about, steps)


def _in_parts(parts: Sequence[Part], arguments: Sequence[str]) -> int:
    """Build all parts with a launcher (``-m part=...``); return the exit code."""
    own, hydra_ones = divided(arguments)
    options, config = split_options(own)
    folder, shown = folder_of(config, options), open_console(quiet=config.quiet)
    code = carry_out_parts(
        "semspec.cli.build_datastore", own, hydra_ones, parts, stages(options), folder, shown
    )
    if not code:
        echo(
            f"parts: {folder}; the same command without -m and part= makes the datastore",
            newline=" ",
        )
    return code


def _main(given: Sequence[str]) -> None:
    parts, several, rest = split(given)
    if several:
        sys.exit(_in_parts(parts, rest))
    console = open_console()
    if parts:
        about = {"job": parts[0].name, "overrides": rest}
        _build_part(rest, parts[0], "", about, console)
        return
    options, config = split_options(rest)
    made, out = make(config, options, Steps(console, config.quiet))
    console.print(result_table(made))
    console.say(f"datastore: {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(_main, HELP, arguments, parts=True)
