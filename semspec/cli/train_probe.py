"""``python -m semspec.train_probe``: train a semantic-probability probe, from data to artifact.

Contexts, samples, clusters, training: see ``semspec.training.probes``. After a kill every stage resumes, and
a folder's samples serve any number of trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich.table import Table
from rich.text import Text as Line

from semspec.cli.command import run_command
from semspec.jobs import stages
from semspec.jobs.sweep import Job
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.training.probes.checks import HELP
from semspec.training.probes.compose import GROUPS, build, options
from semspec.training.probes.settings import ProbeConfig

EXAMPLES = (
    ("python -m semspec.train_probe draft=tiny chains=mixed", "the embedded target's probe"),
    ("python -m semspec.train_probe draft=tiny role=draft", "the embedded draft's"),
    ("python -m semspec.train_probe features=plus", "same samples, other features"),
    ("python -m semspec.train_probe model=r1-32b source=hub data=simplescaling/s1K", "the paper's"),
    (
        "python -m semspec.train_probe model=r1-32b engine=sglang engine.target_url=http://HOST:PORT ...",
        "sampled by a server (docs/sglang.md)",
    ),
    (
        "python -m semspec.train_probe -m part=all/8 hydra/launcher=submitit_slurm ...",
        "sampled by eight jobs of Slurm; then the same without -m and part= (docs/scale-out.md)",
    ),
)


def show_help(console: Screen | None = None) -> None:
    console = console or open_console()
    console.print(
        Line.assemble(("semspec.train_probe", "bold"), ": how probable is what a step means?\n")
    )
    for command, what in EXAMPLES:
        console.print(Line(f"  {command}"), soft_wrap=True)
        console.print(Line(f"      {what}", "dim"))
    chosen = {"model": "tiny", "draft": "none", "engine": "hf"}
    chosen |= {"cluster": "nli", "features": "paper"}
    defaults = {f.name: f.default for f in fields(ProbeConfig)}
    lists = {
        f.name: f.default_factory()
        for f in fields(ProbeConfig)
        if callable(f.default_factory) and f.name not in GROUPS
    }
    for title, section in HELP.items():
        console.print(f"\n{title}", style="bold")
        table = Table.grid(padding=(0, 2))
        for name, what in section.items():
            value = chosen.get(name, lists.get(name, defaults.get(name)))
            shown = str(value).replace("'", "").replace(" ", "") if value is not None else ""
            table.add_row(f"  {name}", Line(what), Line(shown, "dim"))
        console.print(table)
    for group in ("cluster", "features"):
        console.print(f"\n{group}=", style="bold")
        table = Table.grid(padding=(0, 2))
        for name, summary in options(group).items():
            table.add_row(f"  {name}", Line(summary))
        console.print(table)
    console.print(
        "\ncluster.model=, cluster.device=, features.pooling=, features.layers=, features.logprobs= and"
        " engine.device= set one option of the chosen one."
    )


def result_table(figures: dict[str, Any]) -> Table:
    """Return a table of the test's figures and those of the baselines."""
    from rich.box import SIMPLE_HEAD

    table = Table(box=SIMPLE_HEAD)
    for name in ("held-out problems", "rows", "R2", "Spearman", "AUROC", "ECE"):
        table.add_column(name, justify="left" if name.startswith("held") else "right")

    def row(label: str, f: dict[str, Any], style: str = "") -> None:
        cells = ["-" if f[k] is None else f"{f[k]:.3f}" for k in ("r2", "spearman", "auroc", "ece")]
        table.add_row(label, f"{f['rows']:,}", *cells, style=style)

    for part, f in figures["test"].items():
        row(f"probe, {part}", f, "bold" if part == "all" else "")
    for label, f in figures["baselines"].items():
        row(label, f)
    return table


def work_of(arguments: Sequence[str]) -> Any:
    from semspec.training.probes.stages import Sampling  # slow: imports torch

    return Sampling(build(arguments))


def run_shard(job: Job, console: Screen) -> None:
    """Run one shard as a launcher's job."""
    stages.run_job(work_of, job, console)


def run(arguments: Sequence[str]) -> None:
    if stages.run_in_shards("semspec.cli.train_probe", work_of, arguments):
        return
    config = build(arguments)
    from semspec.training.probes.pipeline import make  # slow: imports torch

    console = open_console()
    probe, out = make(config, Steps(console, config.quiet))
    console.print(result_table(probe.config["metrics"]))
    console.say(f"probe: {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, show_help, arguments, parts=True)
