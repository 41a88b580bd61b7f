"""``python -m semspec.publish``: upload an artifact's folder to the Hugging Face Hub in one commit.

Sends nothing without ``confirm=true``. Refuses a repository that holds something else unless ``update=true``, and
a public repository if ``private=true``. Readers see the old revision until the commit, which comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.artifacts import base, inspection
from semspec.artifacts.probe import Probe
from semspec.artifacts.upload import upload
from semspec.cli.command import run_command
from semspec.errors import UserError
from semspec.jobs.options import described, option, read, take
from semspec.probes import index
from semspec.report.terminal import Screen, open_console, table_of
from semspec.storage import manifests
from semspec.storage.screen import visible


@dataclass(frozen=True, kw_only=True)
class Options:
    """The folder, the repository, and how to publish."""

    # fmt: off
    path: str = option(text="an artifact's folder, or embedded/NAME; it must pass python -m semspec.artifacts verify")
    repo: str = option(text="the repository; created if it does not exist")
    confirm: bool = option(False, "upload; without it the command only shows files, sizes and the card")
    private: bool = option(False, "create a private repository; refuse one that is already public")
    update: bool = option(False, "replace what an existing repository holds (earlier revisions stay)")
    tag: str = option("", "a tag for the new revision, such as v1.0")
    message: str = option("", "the commit message")
    # fmt: on


HELP = f"""\
usage: python -m semspec.publish path=FOLDER repo=OWNER/NAME [name=value ...]

{described(Options)}

One commit holds exactly the folder's files. Log in with 'hf auth login', or set HF_TOKEN: a token is never an
option, because other users can see command lines, and is never printed.
Runs find a published probe by its model's name through a line in conf/probes.yaml, which this command prints.
"""


def publish(folder: Path, repo_id: str, **options: Any) -> str:
    """Check a folder as ``semspec.artifacts verify`` does, then upload it; options as of ``upload``."""
    inspection.check(folder)
    return upload(folder, repo_id, **options)


def show(folder: Path, given: Options, console: Screen) -> None:
    """Print what would be sent, without any request."""
    artifact = inspection.check(folder)
    kind = "a private" if given.private else "a public"
    tag = f", tagged {given.tag}" if given.tag else ""
    console.say(f"{artifact.kind} {folder} -> {given.repo} ({kind} repository{tag})", "bold")
    table = table_of("file", "bytes")
    names = [*manifests.names(folder), base.MANIFEST]
    sizes = [(folder / name).stat().st_size for name in names]
    for name, size in zip([*names, "together"], [*sizes, sum(sizes)], strict=True):
        table.add_row(visible(name, newline=" "), f"{size:,}")
    console.print(table)
    console.print(artifact.texts[base.CARD], soft_wrap=True)
    console.print("nothing was sent: add confirm=true to upload")


def run(arguments: Sequence[str]) -> None:
    if take(arguments, ("token", "hf_token"))[0]:
        raise UserError("a token is not an option: log in with 'hf auth login', or set HF_TOKEN")
    given = read(Options, arguments, "semspec.publish")
    folder, repo = inspection.local(given.path), given.repo
    if repo.count("/") != 1:
        raise UserError(f"repo={repo} is not a repository name: give OWNER/NAME")
    console = open_console()
    if not given.confirm:
        show(folder, given, console)
        return
    how = {"tag": given.tag or None, "commit_message": given.message or None}
    commit = publish(folder, repo, private=given.private, update=given.update, **how)
    console.say(f"published: {repo}@{commit}")
    artifact = inspection.check(folder)
    if isinstance(artifact, Probe) and artifact.kind == Probe.kind:
        features = index.feature_set(artifact.features, artifact.layers)
        line = index.line(artifact.config, features, repo, commit)
        console.print(f"for conf/probes.yaml:\n{line}", soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
