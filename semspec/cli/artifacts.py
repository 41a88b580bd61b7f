"""``python -m semspec.artifacts``: list, show, verify and seal artifacts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec import registry
from semspec.artifacts import base, inspection
from semspec.artifacts.evaluation import Evaluation
from semspec.artifacts.upload import WHOLE
from semspec.cli.command import run_command
from semspec.config import did_you_mean
from semspec.errors import UserError
from semspec.jobs.options import strings
from semspec.models.hub import split_revision
from semspec.models.online import content_hash, hub_errors, list_files
from semspec.report.terminal import open_console
from semspec.storage import manifests
from semspec.storage.packaged import beside_package
from semspec.storage.screen import echo, visible

HELP = """\
usage: python -m semspec.artifacts COMMAND [name=value ...]

  list [path=FOLDER]          the artifacts below a folder (default: those shipped with the package)
  inspect path=...            one artifact: its model, files, tensors and figures
  verify path=FOLDER          exit with 1 if anything below the folder differs from what was published
         [repo=owner/name@revision]   ... or differs from that repository
  seal path=FOLDER            write new manifests for all artifacts below a folder
  evaluation run=FOLDER out=FOLDER    make an artifact of a finished run's result
  kinds                       the kinds of artifacts; schema kind=NAME prints a config's JSON schema

A path is a folder or embedded/NAME, for inspect also a Hub repository (owner/name@revision).
verify checks the manifest (size and sha256 of every file, no file more or less), the config by its
schema, names, shapes, types and finiteness of all tensors, and the card's front matter.
To publish or fetch an artifact: python -m semspec.publish --help, python -m semspec.pull --help.
"""


def _table(*headings: str, right: str = "") -> Table:
    """Return an empty table; ``right`` names its one right-aligned column."""
    table = Table(box=SIMPLE_HEAD)
    for name in headings:
        table.add_column(name, justify="right" if name == right else "left", no_wrap=name == "name")
    return table


def show_list(path: str = "") -> int:
    table = _table("name", "kind", "for", "KiB", "", right="KiB")
    for found in inspection.below(inspection.local(path or str(beside_package("hub_artifacts")))):
        if found.folder.is_dir():
            config = base.read_json(found.folder, found.kind) if found.kind else {}
            model = config.get("model")
            bound = model.get("id", "") if isinstance(model, dict) else ""
            size = sum(f.stat().st_size for f in found.folder.iterdir() if f.is_file())
            state = "not as published" if found.wrong else ""
            cells = found.folder.name, found.kind or "?", str(bound), f"{size / 1024:,.0f}", state
            table.add_row(*(visible(cell, newline=" ") for cell in cells))
    open_console().print(table)
    return 0


def inspect(path: str) -> int:
    folder = base.find(path, wanted=replace(WHOLE, option="path"))
    artifact = inspection.kind_of(folder).read(folder)
    manifest = manifests.read(folder)
    out = open_console()
    out.say(f"{artifact.kind} {folder}", "bold")
    for name in ("model", "draft", "role", "split", "temperature", "provenance"):
        if name in artifact.config:
            out.say(f"  {name}: {json.dumps(artifact.config[name])}")
    if figures := artifact.figures():
        shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        out.print(visible(f"  figures: {shown}", newline=" "))
    table = _table("file", "bytes", "sha256", right="bytes")
    for file, entry in (manifest or {"files": {}})["files"].items():
        table.add_row(visible(file, newline=" "), f"{entry['size']:,}", entry["sha256"][:16])
    out.print(table)
    table = _table("tensor", "shape", "type")
    for name, tensor in artifact.tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        table.add_row(visible(name, newline=" "), str(list(tensor.shape)), kind)
    if artifact.tensors:
        out.print(table)
    if manifest is None:
        out.print("no manifest: python -m semspec.artifacts seal path=... writes one")
    return 0


def verify(path: str, repo: str = "") -> int:
    folder = inspection.local(path)
    found = list(inspection.below(folder))
    wrong = [line for one in found for line in one.wrong]
    if repo:
        wrong += _unlike_repository(folder, repo)
    if not found:
        wrong.append(f"{folder} holds no artifact")
    for line in wrong:
        echo(line, newline=" ")
    good = sum(not one.wrong for one in found)
    echo(f"{good} of {len(found)} as published" if not wrong else f"{len(wrong)} not as published")
    return 1 if wrong else 0


def _unlike_repository(folder: Path, name: str) -> list[str]:
    """List the differences between a folder and a repository of the Hub."""
    repo, revision = split_revision(name)
    with hub_errors(repo, name, WHOLE):
        _, listing = list_files(repo, revision, WHOLE)
    wrong = []
    for file in sorted({*WHOLE.of(listing), *manifests.names(folder), base.MANIFEST}):
        path = folder / file
        if file not in listing or not path.is_file():
            wrong.append(f"{file} is {'not in ' + name if path.exists() else 'missing'}")
        elif content_hash(path, listing[file][1]) != listing[file][1]:
            wrong.append(f"{file} is not what {name} holds")
    return wrong


def seal(path: str) -> int:
    top = inspection.local(path)
    folders = [found.folder for found in inspection.below(top) if found.folder.is_dir()]
    if not folders:
        raise UserError(f"{top} holds no artifact: give the folder of one, or of several")
    for folder in folders:
        echo(f"sealed {folder} ({inspection.seal(folder).kind})", newline=" ")
    return 0


def evaluation(out: str, run: str) -> int:
    Evaluation.of_run(Path(run)).save(Path(out))
    echo(f"evaluation: {Path(out)}", newline=" ")
    return 0


def kinds() -> int:
    for name, plugin in registry.plugins("artifact").items():
        echo(f"{name:12} {plugin.summary}")
    return 0


def schema(kind: str) -> int:
    echo(json.dumps(registry.plugin("artifact", kind).cls.schema, indent=2))
    return 0


COMMANDS: dict[str, Callable[..., int]] = {  # their parameters are their options
    "list": show_list,
    "inspect": inspect,
    "verify": verify,
    "seal": seal,
    "evaluation": evaluation,
    "kinds": kinds,
    "schema": schema,
}


def options_of(name: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return a command's options; raise UserError for an unknown or missing one."""
    takes = signature(COMMANDS[name]).parameters
    given = strings(arguments, list(takes), f"semspec.artifacts {name}")
    for option, one in takes.items():
        if one.default is one.empty and not given.get(option):
            raise UserError(f"{option}= is missing: see python -m semspec.artifacts --help")
    return given


def run(arguments: Sequence[str]) -> None:
    name, *rest = arguments
    if name not in COMMANDS:
        near = did_you_mean(name, list(COMMANDS))
        raise UserError(f"unknown command '{name}'{near} known: {', '.join(COMMANDS)}")
    if code := COMMANDS[name](**options_of(name, rest)):
        sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
