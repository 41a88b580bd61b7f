"""``python -m semspec.publish``: an artifact's folder to the Hugging Face Hub, in one commit.

Nothing is sent unless ``confirm=true``. A repository that holds something else is left alone unless
``update=true``, one that is public is never taken for a private one, and until the commit, which comes
last, everybody sees the old revision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec.artifacts import base, inspection
from semspec.artifacts.probe import Probe
from semspec.cli.command import ends_in_one_line, flag, options
from semspec.errors import UserError
from semspec.models.hub import Listing, content_hash, list_files, said
from semspec.probes import index
from semspec.report.terminal import Screen, open_console
from semspec.storage import manifests
from semspec.storage.screen import echo, visible

if TYPE_CHECKING:
    from huggingface_hub import HfApi

THEIRS = {".gitattributes"}  # the Hub's own: stays as it is
HELP = """\
usage: python -m semspec.publish path=FOLDER repo=OWNER/NAME [name=value ...]

  path=      an artifact's folder, or embedded/NAME; it must pass python -m semspec.artifacts verify
  repo=      where to; it is made where there is none
  confirm=   true: upload. Without it nothing is sent: files, sizes and the card are shown
  private=   true: the repository is made private; one that is public already is refused
  update=    true: replace what an existing repository holds (earlier revisions stay)
  tag=       a tag for the new revision, such as v1.0
  message=   of the commit

One commit holds exactly the folder's files. Log in with 'hf auth login', or set HF_TOKEN: a token is never
an option, since command lines are seen by others, and is never printed.
To be found by a model's name, a published probe wants a line in conf/probes.yaml, which is printed.
"""
KNOWN = ("path", "repo", "confirm", "private", "update", "tag", "message")


@dataclass(frozen=True, slots=True)
class Head:
    """What a repository holds now."""

    commit: str
    private: bool
    listing: Listing


def publish(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    update: bool = False,
    tag: str | None = None,
    token: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Uploads a sealed folder in one commit, and looks whether it arrived; returns the commit's id.

    ``repo_id`` without an owner is the user's own. What is there already, byte by byte, is not sent again.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    artifact = inspection.check(folder)
    files = [*manifests.names(folder), base.MANIFEST]
    api = HfApi(token=token)
    repo_id = _with_owner(api, repo_id, token)
    with _told(repo_id, token):
        head = _head(api, repo_id)
        if head is None:
            api.create_repo(repo_id, private=bool(private))
            head = _head(api, repo_id)
            assert head is not None
        gone = [n for n in head.listing if n not in files and n not in THEIRS]
        same = not gone and not _unlike(folder, files, head.listing)
        _may_replace(repo_id, head, private, update or same)
        tags = {t.name: t.target_commit for t in api.list_repo_refs(repo_id).tags} if tag else {}
        if tag in tags and not (same and tags[tag] == head.commit):
            raise UserError(f"{repo_id} has a tag {tag}: give another tag=")
        if same:
            commit = head.commit
        else:
            additions = [CommitOperationAdd(n, str(folder / n)) for n in files]
            commit = api.create_commit(
                repo_id,
                [*additions, *(CommitOperationDelete(n) for n in gone)],
                commit_message=commit_message or f"{artifact.kind}: {folder.name}",
                parent_commit=head.commit,  # somebody else's commit in between is not undone
            ).oid
    if not same:
        with _afterwards(f"{repo_id}@{commit}", "looking at what arrived", token):
            _, listing = list_files(repo_id, commit, base.WHOLE, token)
        unlike = _unlike(folder, files, listing)
        if unlike:
            raise UserError(
                f"{repo_id} at {commit} does not hold what was sent ({', '.join(unlike)}): publish"
                " again with update=true"
            )
    if tag and tag not in tags:
        with _afterwards(f"{repo_id}@{commit}", f"the tag {tag}", token):
            api.create_tag(repo_id, tag=tag, revision=commit)
    return commit


def _with_owner(api: HfApi, repo: str, token: str | None) -> str:
    """``name`` is the user's own, as everywhere at the Hub."""
    from huggingface_hub.errors import LocalTokenNotFoundError

    if "/" in repo:
        return repo
    with _told(repo, token):
        try:
            return f"{api.whoami()['name']}/{repo}"
        except LocalTokenNotFoundError as e:
            raise UserError(
                f"whose {repo} is it: log in with 'hf auth login', or give OWNER/{repo}"
            ) from e


def _head(api: HfApi, repo: str) -> Head | None:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        private = bool(api.repo_info(repo).private)
    except RepositoryNotFoundError:
        return None
    commit, listing = list_files(repo, None, base.WHOLE, api.token)  # type: ignore[arg-type]
    return Head(commit, private, listing)


def _may_replace(repo: str, head: Head, private: bool | None, update: bool) -> None:
    if private and not head.private:
        raise UserError(
            f"{repo} is public: make it private on the Hub first, or leave private=true out"
        )
    there = [name for name in head.listing if name not in THEIRS]
    if there and not update:
        raise UserError(
            f"{repo} exists and holds {len(there)} files: add update=true to replace them in one"
            " commit (earlier revisions stay), or give another repo="
        )


def _unlike(folder: Path, files: Sequence[str], listing: Listing) -> list[str]:
    return [
        n for n in files if n not in listing or content_hash(folder / n, listing[n][1]) != listing[n][1]
    ]  # fmt: skip


@contextmanager
def _told(repo: str, token: str | None) -> Iterator[None]:
    """What can go wrong at the Hub, in one line and without the token."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.HFValidationError as e:
        raise UserError(f"repo={repo} is no repository's name: give OWNER/NAME") from e
    except errors.OfflineModeIsEnabled as e:
        raise UserError("HF_HUB_OFFLINE is set: publish where there is a network") from e
    except errors.HfHubHTTPError as e:
        status = e.response.status_code
        if status in (401, 403):
            raise UserError(
                f"no right to write to {repo}: log in with 'hf auth login' and a token that may"
                f" write there ({_line(e, token)})"
            ) from e
        if status in (409, 412):
            raise UserError(
                f"{repo} was changed by somebody else meanwhile ({_line(e, token)}): look at it, then"
                " publish again with update=true"
            ) from e
        raise UserError(f"{repo}: the upload failed ({_line(e, token)}); what was there is as it was: try again") from e  # fmt: skip
    except Exception as e:  # network, disk: errors of whatever HTTP library the Hub client uses
        raise UserError(f"{repo}: the upload failed ({_line(e, token)}); what was there is as it was: try again") from e  # fmt: skip


@contextmanager
def _afterwards(at: str, what: str, token: str | None) -> Iterator[None]:
    """What goes wrong when the commit is there: nobody is to take it for not published."""
    try:
        yield
    except Exception as e:  # network, disk, rights
        raise UserError(
            f"{at} is published, but {what} failed ({_line(e, token)}): the same again does what is left"
        ) from e


def _line(error: Exception, token: str | None) -> str:
    text = said(error)
    return text.replace(token, "***") if token else text


def show(folder: Path, repo: str, given: Mapping[str, str], console: Screen) -> None:
    """What would be sent; asks nobody."""
    artifact = inspection.check(folder)
    kind = "a private" if flag(given, "private") else "a public"
    tag = f", tagged {given['tag']}" if given.get("tag") else ""
    console.say(f"{artifact.kind} {folder} -> {repo} ({kind} repository{tag})", "bold")
    table = Table(box=SIMPLE_HEAD)
    table.add_column("file")
    table.add_column("bytes", justify="right")
    names = [*manifests.names(folder), base.MANIFEST]
    for name in names:
        table.add_row(visible(name, newline=" "), f"{(folder / name).stat().st_size:,}")
    table.add_row("together", f"{sum((folder / n).stat().st_size for n in names):,}")
    console.print(table)
    console.print(artifact.texts[base.CARD], soft_wrap=True)
    console.print("nothing was sent: add confirm=true to upload")


def run(arguments: Sequence[str]) -> None:
    if not arguments or {"-h", "--help"} & set(arguments):
        echo(HELP.rstrip())
        return
    if any(a.partition("=")[0] in ("token", "hf_token") for a in arguments):
        raise UserError("a token is no option: log in with 'hf auth login', or set HF_TOKEN")
    given = options(arguments, KNOWN, "python -m semspec.publish")
    for name in ("path", "repo"):
        if not given.get(name):
            raise UserError(f"{name}= is missing: see python -m semspec.publish --help")
    folder, repo = inspection.local(given["path"]), given["repo"]
    if repo.count("/") != 1:
        raise UserError(f"repo={repo} is no repository's name: give OWNER/NAME")
    console = open_console()
    if not flag(given, "confirm"):
        show(folder, repo, given, console)
        return
    commit = publish(
        folder,
        repo,
        private=flag(given, "private"),
        update=flag(given, "update"),
        tag=given.get("tag"),
        commit_message=given.get("message"),
    )
    console.say(f"published: {repo}@{commit}")
    artifact = inspection.check(folder)
    if isinstance(artifact, Probe):
        line = index.line(artifact, repo, commit)
        console.print(f"for conf/probes.yaml:\n{line}", soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    ends_in_one_line(lambda: run(given))
