"""``python -m semspec.train_probe``: train a semantic-probability probe, from data to artifact.

Contexts, samples, clusters, training: see ``semspec.training.probes``. Every stage resumes after a
kill, and a folder's samples serve any number of trainings.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rich.table import Table
from rich.text import Text as Line

from semspec.cli.command import ends_in_one_line
from semspec.jobs.parts import Part, split
from semspec.jobs.sweep import Job
from semspec.report.terminal import Screen, open_console
from semspec.storage.screen import echo
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
    """Return the table of the test's figures beside the baselines."""
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


def do_part(job: Job, console: Screen) -> None:
    """Sample one of several parts, as a launcher's job."""
    (part,), _, rest = split(job.overrides)
    _sample_part(build(rest), part, job.stage, job.about, console)


def _sample_part(
    config: ProbeConfig, part: Part, until: str, about: Mapping[str, Any], console: Screen
) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from semspec.report.progress import Steps
    from semspec.training.probes.pipeline import folder_of, probe_facts
    from semspec.training.probes.stages import sample_part

    steps = Steps(console, config.quiet)
    sample_part(config, probe_facts(config), part, folder_of(config), until, about, steps)


def _in_parts(parts: Sequence[Part], arguments: Sequence[str]) -> int:
    """Sample all parts with a launcher (``-m part=...``); return the exit code."""
    from semspec.jobs.part_jobs import carry_out_parts, divided

    own, hydra_ones = divided(arguments)
    config = build(own)
    from semspec.training.probes.pipeline import folder_of
    from semspec.training.probes.stages import stages

    folder, shown = folder_of(config), open_console(quiet=config.quiet)
    code = carry_out_parts(
        "semspec.cli.train_probe", own, hydra_ones, parts, stages(config), folder, shown
    )
    if not code:
        echo(
            f"samples: {folder}; the same command without -m and part= trains the probe",
            newline=" ",
        )
    return code


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    ends_in_one_line(lambda: _main(given))


def _main(given: Sequence[str]) -> None:
    if {"-h", "--help"} & set(given):
        show_help()
        return
    parts, several, rest = split(given)
    if several:
        sys.exit(_in_parts(parts, rest))
    config = build(rest)
    if parts:
        about = {"job": parts[0].name, "overrides": rest}
        _sample_part(config, parts[0], "samples", about, open_console())
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from semspec.report.progress import Steps
    from semspec.training.probes.pipeline import make  # slow: imports torch

    console = open_console()
    probe, out = make(config, Steps(console, config.quiet))
    console.print(result_table(probe.config["metrics"]))
    console.say(f"probe: {out}")
