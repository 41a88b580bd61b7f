"""``python -m semspec.train_probe``: train a semantic-probability probe, from data to artifact.

The stages are contexts, samples, clusters and training: see ``semspec.training.probes``. Every stage resumes after a
kill, and one folder of samples serves any number of trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text as Line

from semspec.cli.command import run_command
from semspec.cli.help import show_examples, show_rows, show_title
from semspec.cli.plan import asked
from semspec.cli.plan_training import plan_training
from semspec.jobs import stages
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console, table_of
from semspec.training.probes.checks import HELP
from semspec.training.probes.compose import GROUPS, build, options
from semspec.training.probes.settings import ProbeConfig

EXAMPLES = (
    ("python -m semspec.train_probe draft=tiny chains=mixed", "the embedded target's probe"),
    ("python -m semspec.train_probe draft=tiny role=draft", "the embedded draft model's probe"),
    (
        "python -m semspec.train_probe features=plus",
        "more features of each step; 'pooling=[mean,max,last]' keeps all of them",
    ),
    (
        "python -m semspec.train_probe model=r1-32b source=hub data=simplescaling/s1K",
        "the paper's probe",
    ),
    (
        "python -m semspec.train_probe model=r1-32b engine=sglang engine.target_url=http://HOST:PORT ...",
        "sample with a server (docs/sglang.md)",
    ),
    (
        "python -m semspec.train_probe -m part=all/8 hydra/launcher=submitit_slurm ...",
        "sample in eight Slurm jobs; then run the same command without -m and part= (docs/scale-out.md)",
    ),
    (
        "python -m semspec.train_probe ... plan=true",
        "only print what that would download, write and cost, and all commands up to a published probe",
    ),
)


def show_help(console: Screen | None = None) -> None:
    console = console or open_console()
    show_title(
        console, "semspec.train_probe", ": train a probe of how probable a step's meaning is\n"
    )
    show_examples(console, EXAMPLES)
    values: dict[str, Any] = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in fields(ProbeConfig)
        if f.name not in GROUPS
    }
    values |= {"model": "tiny", "draft": "none", "engine": "hf"}
    values |= {"cluster": "nli", "features": "paper"}
    for title, section in HELP.items():
        show_title(console, f"\n{title}")
        given = {name: "" if values.get(name) is None else str(values[name]) for name in section}
        short = {n: text.replace("'", "").replace(" ", "") for n, text in given.items()}
        show_rows(console, [(n, what, Line(short[n], "dim")) for n, what in section.items()])
    for group in ("cluster", "features"):
        show_title(console, f"\n{group}=")
        show_rows(console, options(group).items())
    console.print(
        "\ncluster.model=, cluster.device=, features.pooling=, features.layers=, features.logprobs= and"
        " engine.device= set single options of the chosen plugin."
    )


def result_table(figures: dict[str, Any]) -> Table:
    """Return a table of test figures: the probe's and the baselines'."""
    table = table_of("held-out problems", "rows", "R2", "Spearman", "AUROC", "ECE")

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


run_shard = partial(stages.run_job, work_of)  # a launcher's job


def run(arguments: Sequence[str]) -> None:
    planned, arguments = asked(arguments)
    if planned:
        plan = plan_training(build(arguments), arguments)
        plan.show(open_console(), "Training this probe would take:")
        return
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
