"""``python -m semspec.pull``: download an artifact from the Hugging Face Hub and verify every file's hash."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semspec.artifacts import base, inspection
from semspec.artifacts.upload import WHOLE
from semspec.cli.command import run_command
from semspec.errors import UserError
from semspec.jobs.options import described, option, read
from semspec.storage import manifests, swap
from semspec.storage.files import os_errors_as_user_errors
from semspec.storage.screen import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    """The repository and the folder to copy it to."""

    # fmt: off
    repo: str = option(text="a Hub repository; a revision is a branch, a tag or a commit")
    out: str = option("", "a folder to copy it to, which must not exist; by default it stays in the Hub cache")
    # fmt: on


HELP = f"""\
usage: python -m semspec.pull repo=OWNER/NAME[@REVISION] [out=FOLDER]

{described(Options)}

Hashes every file and compares it with the Hub's listing and the artifact's manifest, then loads the artifact as a
run would. With HF_HUB_OFFLINE=1 it uses earlier downloads only.
"""


def pull(repo: str, out: Path | None = None) -> tuple[Path, base.Artifact]:
    """Download and verify an artifact; return its folder in the cache (with ``out``, a copy there) and the artifact."""
    if repo.count("/") != 1 or repo.startswith((".", "/", "~", "embedded/")):
        raise UserError(f"repo={repo} is not a repository name: give OWNER/NAME")
    if out is not None and out.exists():
        raise UserError(f"{out} already exists: give another out=")
    folder = base.find(repo, wanted=WHOLE)
    artifact = inspection.check(folder)
    if out is None:
        return folder, artifact
    with os_errors_as_user_errors(out):
        beside = swap.stage(swap.place(out))
        for name in [*manifests.names(folder), base.MANIFEST]:
            shutil.copyfile(folder / name, beside / name)
        swap.finish(beside, swap.place(out))
    return out, inspection.check(out)


def run(arguments: Sequence[str]) -> None:
    given = read(Options, arguments, "semspec.pull")
    folder, artifact = pull(given.repo, Path(given.out).expanduser() if given.out else None)
    echo(f"{artifact.kind}: {folder}", newline=" ")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments, bare=False)
