"""Upload an artifact's folder to the Hugging Face Hub in one commit, and check what arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semspec.errors import UserError
from semspec.models.online import Listing, content_hash, list_files, safe_message
from semspec.models.wanted import Wanted
from semspec.storage import manifests

if TYPE_CHECKING:
    from huggingface_hub import HfApi

THEIRS = {".gitattributes"}  # the Hub's own file, left as it is
WHOLE = Wanted(
    noun="artifact",
    option="repo",
    patterns=("*",),
    unwanted=("*/*", ".gitattributes"),
    refuses=manifests.strange_in_repository,
)


@dataclass(frozen=True, slots=True)
class Head:
    """The present state of a repository."""

    commit: str
    private: bool
    listing: Listing


def upload(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    update: bool = False,
    tag: str | None = None,
    token: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Upload a sealed folder in one commit, check that it arrived, and return the commit's id.

    ``repo_id`` without an owner belongs to the user. If the same bytes are there already, nothing is sent.
    Raises UserError if the repository holds something else and ``update`` is not given.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    files = [*manifests.names(folder), manifests.NAME]
    api = HfApi(token=token)
    repo_id = _with_owner(api, repo_id, token)
    with _hub_errors(repo_id, token):
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
            added = [CommitOperationAdd(n, str(folder / n)) for n in files]
            manifest = manifests.read(folder)
            assert manifest is not None, f"{folder} is not sealed"
            commit = api.create_commit(
                repo_id,
                [*added, *map(CommitOperationDelete, gone)],
                commit_message=commit_message or f"{manifest['kind']}: {folder.name}",
                parent_commit=head.commit,  # never undoes somebody else's commit
            ).oid
    if not same:
        with _errors_after_commit(f"{repo_id}@{commit}", "looking at what arrived", token):
            _, listing = list_files(repo_id, commit, WHOLE, token)
        if unlike := _unlike(folder, files, listing):
            raise UserError(
                f"{repo_id} at {commit} does not hold what was sent ({', '.join(unlike)}): publish"
                " again with update=true"
            )
    if tag and tag not in tags:
        with _errors_after_commit(f"{repo_id}@{commit}", f"the tag {tag}", token):
            api.create_tag(repo_id, tag=tag, revision=commit)
    return commit


def _with_owner(api: HfApi, repo: str, token: str | None) -> str:
    """Complete ``name`` to ``user/name``; raise UserError if nobody is logged in."""
    from huggingface_hub.errors import LocalTokenNotFoundError

    if "/" in repo:
        return repo
    with _hub_errors(repo, token):
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
    commit, listing = list_files(repo, None, WHOLE, api.token)  # type: ignore[arg-type]
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
    def same(name: str) -> bool:
        return name in listing and content_hash(folder / name, listing[name][1]) == listing[name][1]

    return [name for name in files if not same(name)]


@contextmanager
def _hub_errors(repo: str, token: str | None) -> Iterator[None]:
    """Turn any error of the Hub into a UserError of one line without the token."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.HFValidationError as e:
        raise UserError(f"repo={repo} is not a repository name: give OWNER/NAME") from e
    except errors.OfflineModeIsEnabled as e:
        raise UserError("HF_HUB_OFFLINE is set: publish where there is a network") from e
    except Exception as e:  # network, disk: errors of whatever HTTP library the Hub client uses
        status = e.response.status_code if isinstance(e, errors.HfHubHTTPError) else None
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
        raise UserError(
            f"{repo}: the upload failed ({_line(e, token)}); what was there is as it was: try again"
        ) from e


@contextmanager
def _errors_after_commit(at: str, what: str, token: str | None) -> Iterator[None]:
    """Turn any error after the commit into a UserError which says that the folder is published."""
    try:
        yield
    except Exception as e:  # network, disk, rights
        raise UserError(
            f"{at} is published, but {what} failed ({_line(e, token)}): the same again does what is left"
        ) from e


def _line(error: Exception, token: str | None) -> str:
    text = safe_message(error)
    return text.replace(token, "***") if token else text
