"""``python -m semspec.report``: write a run or a sweep as one HTML file, also while it still runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from semspec.cli.command import flag, options, run_command
from semspec.errors import UserError
from semspec.report.html_transcript import Limits
from semspec.report.write import write_run, write_sweep
from semspec.results.schema import SCHEMA
from semspec.storage.screen import echo

HELP = """\
usage: python -m semspec.report run=FOLDER   [out=FILE] [transcripts=24]
       python -m semspec.report sweep=FOLDER [out=FILE]
       python -m semspec.report schema=true      the JSON schema of result.json

Writes report.html into the folder (or out=FILE): one file below 2 MB that fetches nothing, to be read in any
browser, passed on or printed. Every run writes its own at its end; this command writes it again, or while the
run or the sweep is still going on. The jobs of a finished sweep keep their own reports.

  transcripts   how many problems are shown step by step (0: none)
"""


def run(arguments: Sequence[str]) -> None:
    given = options(
        arguments, ("run", "sweep", "out", "transcripts", "schema"), "python -m semspec.report"
    )
    if flag(given, "schema"):
        echo(json.dumps(SCHEMA, indent=2))
        return
    if ("run" in given) == ("sweep" in given):
        raise UserError(
            "give either run=FOLDER or sweep=FOLDER; see python -m semspec.report --help"
        )
    out = Path(given["out"]).expanduser() if given.get("out") else None
    limits = Limits()
    if "transcripts" in given:
        if "sweep" in given or not given["transcripts"].isdecimal():
            raise UserError("transcripts= is a number, and belongs to run=FOLDER")
        limits = Limits(problems=int(given["transcripts"]))
    if "run" in given:
        written = write_run(Path(given["run"]).expanduser(), out, limits)
    else:
        written = write_sweep(Path(given["sweep"]).expanduser(), out)
    echo(f"report: {written}", newline=" ")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
