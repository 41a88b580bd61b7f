"""Ask the Hub about a repository, and turn its errors into messages for users."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from semspec.errors import UserError, first_line
from semspec.models.wanted import Wanted
from semspec.storage import manifests
from semspec.storage.provenance import masked

PATIENCE = 3.0  # seconds to wait for any answer from the Hub
COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
Listing = Mapping[str, tuple[int, str]]
"""Name -> size and hash: sha256 for files in LFS, git's blob hash for others."""


def list_files(
    repo: str, revision: str | None, wanted: Wanted, token: str | None = None
) -> tuple[str, Listing]:
    """Return the commit of a revision and its listing; raise UserError for an implausible listing."""
    from huggingface_hub import HfApi

    info = HfApi(token=token).repo_info(
        repo, revision=revision, repo_type=wanted.repo_type, files_metadata=True
    )
    commit, listing = str(info.sha), {}
    for file in getattr(info, "siblings", None) or ():
        name, size = file.rfilename, file.size
        listed_hash = file.lfs.sha256 if file.lfs is not None else file.blob_id
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable():
            raise UserError(
                f"{repo} lists {name[:80]!a}, which is not a valid file name: not loaded"
            )
        if not isinstance(size, int) or not HASH.fullmatch(str(listed_hash)):
            raise UserError(f"{repo}: the Hub gives no size and hash for {name}: not loaded")
        listing[name] = (size, str(listed_hash))
    if not COMMIT.fullmatch(commit):
        raise UserError(f"{repo}: the Hub gives {commit[:80]!a} instead of a commit: not loaded")
    return commit, listing


def content_hash(path: Path, like: str) -> str:
    """Return a file's hash of the same kind as ``like``: sha256 (64 digits) or git's blob hash."""
    if len(like) == 64:
        return manifests.sha256(path)
    begun = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: begun).hexdigest()


@contextlib.contextmanager
def hub_errors(repo: str, at: str, wanted: Wanted) -> Iterator[None]:
    """Turn errors of the Hub and its client into a one-line UserError without any token."""
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.HFValidationError as e:
        raise UserError(f"'{repo}' is neither a folder nor a Hub repository (owner/name)") from e
    except errors.GatedRepoError as e:
        raise UserError(
            f"{repo} is gated: accept its terms on the Hub and log in with 'hf auth login', or point"
            f" {wanted.option} at a local copy"
        ) from e
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as e:
        raise UserError(
            f"{at} is not on the Hub: check {wanted.option} and its revision "
            "(a private repository needs 'hf auth login')"
        ) from e
    except Exception as e:  # disk, network, or whatever HTTP library the Hub client uses
        raise UserError(
            f"could not get {at} ({safe_message(e)}): check the network and the free disk space and try"
            f" again, or point {wanted.option} at a local folder"
        ) from e


def safe_message(error: BaseException) -> str:
    """Return the first line of an error's cause, with anything like a token masked."""
    text = first_line(error.__cause__ or error)
    token: Any = None
    with contextlib.suppress(Exception):
        from huggingface_hub import get_token

        token = get_token()
    return masked([text.replace(token, "***") if token else text])[0]


def reachable(endpoint: str) -> bool:
    """Return whether the Hub answers at all; its own client would retry for half a minute."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # a proxy may reach hosts that this machine cannot reach
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        with socket.create_connection((url.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False
