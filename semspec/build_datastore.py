"""``python -m semspec.build_datastore``: a corpus that drafters copy from, from texts to an artifact.

Texts, then a suffix array (sparse), or the target's states over them, a projection and an index (dense): see
``semspec.datastores.build``. Every stage goes on where a kill left off.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec.artifacts._datastore import Datastore
from semspec.command import run_command
from semspec.datastores.build import make
from semspec.datastores.settings import HELP, split_options
from semspec.probes.progress import Steps
from semspec.terminal import open_console


def result_table(made: Datastore) -> Table:
    table = Table(box=SIMPLE_HEAD)
    told = {"documents": float(made.config["documents"]), **made.figures()}
    for name in told:
        table.add_column(name, justify="right")
    table.add_row(*(f"{v:,.0f}" if v == round(v) and v > 1 else f"{v:.4f}" for v in told.values()))
    return table


def _main(given: Sequence[str]) -> None:
    options, config = split_options(given)
    console = open_console()
    made, out = make(config, options, Steps(console, config.quiet))
    console.print(result_table(made))
    console.print(f"datastore: {out}", soft_wrap=True, highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(_main, HELP, arguments)


if __name__ == "__main__":
    main()
