"""``python -m semspec.build_datastore``: build the datastore that retrieval drafters copy from.

From texts it builds a suffix array (sparse), or the target's states, a projection and an index (dense): see
``semspec.training.datastores.build``. Every stage resumes after a kill.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.table import Table

from semspec.artifacts.datastore import Datastore
from semspec.cli.command import run_command
from semspec.jobs import stages
from semspec.report.progress import Steps
from semspec.report.terminal import open_console, table_of
from semspec.training.datastores.build import make
from semspec.training.datastores.settings import HELP, split_options
from semspec.training.datastores.stages import Reading


def result_table(made: Datastore) -> Table:
    figures = {"documents": float(made.config["documents"]), **made.figures()}
    table = table_of(*figures, words=0)
    forms = {name: ",.0f" if v == round(v) and v > 1 else ".4f" for name, v in figures.items()}
    table.add_row(*(format(value, forms[name]) for name, value in figures.items()))
    return table


def work_of(arguments: Sequence[str]) -> Reading:
    options, config = split_options(arguments)
    return Reading(config, options)


run_shard = partial(stages.run_job, work_of)  # a launcher's job


def run(arguments: Sequence[str]) -> None:
    if stages.run_in_shards("semspec.cli.build_datastore", work_of, arguments):
        return
    options, config = split_options(arguments)
    console = open_console()
    made, out = make(config, options, Steps(console, config.quiet))
    console.print(result_table(made))
    console.say(f"datastore: {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, parts=True)
