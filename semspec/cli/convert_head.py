"""``python -m semspec.convert_head``: make an artifact from a published drafting head.

Heads published as safetensors need no conversion. Pickled ones (.bin, .pt) are read only here, in a process
that cannot open files or reach the network, and written as safetensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semspec.artifacts.conversion import convert
from semspec.cli.command import run_command
from semspec.jobs.options import described, option, read
from semspec.storage.screen import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    """The published head, and where its copy goes."""

    # fmt: off
    path: str = option(text="a Hub repository, OWNER/NAME[@REVISION], or a folder with config.json and the head's file")
    out: str = option("", "a folder for the artifact; by default a repository's copy goes into the Hub cache, where runs find it")
    confine: str = option("strict", "limits: read a pickled file with time and memory limits only, on systems that cannot sandbox the reader", choices=("strict", "limits"))
    # fmt: on


HELP = f"""\
usage: python -m semspec.convert_head path=HEAD [out=FOLDER] [name=value]

{described(Options)}

Reads EAGLE-3 heads (pytorch_model.bin as their authors publish it, speculators' layout) and Medusa heads (their authors',
TGI's and vLLM's names), whole or in shards, says what it mapped, and writes an artifact with a manifest. docs/heads.md
lists the layouts.
"""


def run(arguments: Sequence[str]) -> None:
    given = read(Options, arguments, "semspec.convert_head")
    out = Path(given.out).expanduser() if given.out else None
    made = convert(given.path, out, given.confine == "strict")
    for line in made.told:
        echo(line, newline=" ")
    echo(f"{made.artifact.kind}: {made.folder}", newline=" ")
    drafter = made.artifact.kind.removesuffix("_head")
    echo(f"use it: draft={drafter} draft.head.path={out or given.path}", newline=" ")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
