"""``python -m semspec.report``: write one HTML file about a run or a sweep, finished or still running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semspec.cli.command import run_command
from semspec.errors import UserError
from semspec.jobs.options import described, option, read
from semspec.report.html_transcript import Limits
from semspec.report.page import write_run
from semspec.report.sweep import write_sweep
from semspec.results.schema import SCHEMA
from semspec.storage.screen import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    """The run or sweep to report, and the file to write."""

    # fmt: off
    run: str = option("", "a run's folder")
    sweep: str = option("", "a sweep's folder")
    out: str = option("", "the file to write", shown="FOLDER/report.html")
    transcripts: int = option(
        -1, "problems of a run to show step by step (0: none)", least=0, shown=str(Limits().problems))
    schema: bool = option(False, "print the JSON schema of result.json")
    # fmt: on


HELP = f"""\
usage: python -m semspec.report FOLDER [out=FILE] [transcripts=24]
       python -m semspec.report run=FOLDER   [out=FILE] [transcripts=24]
       python -m semspec.report sweep=FOLDER [out=FILE]
       python -m semspec.report schema=true      the JSON schema of result.json

Writes report.html into the folder (or out=FILE): one file below 2 MB that loads nothing from elsewhere, to
open in any browser, share or print. Every run writes its own at its end; this command writes it again, also while
the run or sweep is still going. The jobs of a finished sweep keep their own reports.

{described(Options)}
"""

# a folder with any of these is a run
RUN_FILES = ("config.json", "status.json", "problems.jsonl", "result.json")


def _named(argument: str) -> str:
    """Return a bare folder as ``run=FOLDER`` or ``sweep=FOLDER``."""
    if "=" in argument:
        return argument
    folder = Path(argument).expanduser()
    if not folder.is_dir():
        raise UserError(f"there is no folder '{argument}': give that of a run or a sweep")
    is_run = any((folder / name).exists() for name in RUN_FILES)
    return f"run={argument}" if is_run else f"sweep={argument}"


def run(arguments: Sequence[str]) -> None:
    if len([one for one in arguments if "=" not in one]) > 1:
        raise UserError(
            "give one folder; sweep=FOLDER takes one that has several runs or sweeps in it"
        )
    given = read(Options, [_named(one) for one in arguments], "semspec.report")
    if given.schema:
        echo(json.dumps(SCHEMA, indent=2))
        return
    if bool(given.run) == bool(given.sweep):
        raise UserError("give the folder of one run or sweep; see python -m semspec.report --help")
    out = Path(given.out).expanduser() if given.out else None
    if given.transcripts >= 0 and given.sweep:
        raise UserError("transcripts= belongs to run=FOLDER")
    limits = Limits() if given.transcripts < 0 else Limits(problems=given.transcripts)
    if given.run:
        written = write_run(Path(given.run).expanduser(), out, limits)
    else:
        written = write_sweep(Path(given.sweep).expanduser(), out)
    echo(f"report: {written}", newline=" ")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
