"""``python -m semspec.convert_nli``: copy an entailment model with pickled weights to safetensors.

``cluster=nli`` and ``accept=lookahead`` never read pickled weights. This command reads them in a process that cannot
open files or reach the network, then lets the copy judge one pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semspec.cli.command import run_command
from semspec.jobs.options import described, option, read
from semspec.probes.cluster import Entailment
from semspec.probes.cluster.published import convert
from semspec.storage.screen import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    """The published model, and where its copy goes."""

    # fmt: off
    path: str = option(text="a Hub repository, OWNER/NAME[@REVISION], or a folder with pytorch_model.bin")
    out: str = option("", "a folder for the copy; by default a repository's copy goes into the Hub cache, where cluster=nli finds it by the repository's name")
    confine: str = option("strict", "limits: read the pickled file with time and memory limits only, on systems that cannot sandbox the reader", choices=("strict", "limits"))
    # fmt: on


HELP = f"""\
usage: python -m semspec.convert_nli path=MODEL [out=FOLDER] [name=value]

{described(Options)}

microsoft/deberta-v2-xlarge-mnli, SemanticSpec's judge of meaning, is published as pickled weights. Models with safetensors
need no conversion.
"""


def run(arguments: Sequence[str]) -> None:
    given = read(Options, arguments, "semspec.convert_nli")
    out = Path(given.out).expanduser() if given.out else None
    made = convert(given.path, out, given.confine == "strict")
    for line in made.told:
        echo(line, newline=" ")
    Entailment.load(made.folder, tried=True)
    echo(f"entailment model: {made.folder}, which has judged a pair", newline=" ")
    echo(f"use it: cluster=nli cluster.model={out or given.path}", newline=" ")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
