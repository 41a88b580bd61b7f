"""From ``model.path`` to a local folder: itself, or a snapshot of a Hub repository."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from semspec.errors import UserError, first_line

# top level only; "consolidated" is a second copy of the same weights in another naming
WANTED = ["*.safetensors", "*.json", "tokenizer*", "*.txt", "*.model", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
PATIENCE = 3.0  # seconds to wait for the Hub to answer at all


def locate(folder_or_repo: str, revision: str | None) -> Path:
    """The local folder of a model: itself, or a snapshot of a Hub repository."""
    folder = Path(folder_or_repo).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"{folder} is a file: point model.path at the folder that holds it")
    if folder_or_repo.startswith((".", "/", "~")) or folder_or_repo.count("/") != 1:
        raise UserError(
            f"no model folder {folder_or_repo}: download or train the model first, "
            "or point model.path at a local folder or a Hub repository (owner/name)"
        )
    return _snapshot(folder_or_repo, revision)


def _snapshot(repo: str, revision: str | None) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    at = f"{repo} at revision {revision}" if revision else repo
    offline = constants.HF_HUB_OFFLINE or not _reachable(constants.ENDPOINT)
    try:
        found = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
            local_files_only=offline,
        )
    except errors.HFValidationError as e:
        raise UserError(f"'{repo}' is neither a folder nor a Hub repository (owner/name)") from e
    except errors.GatedRepoError as e:
        raise UserError(
            f"{repo} is gated: accept its terms on the Hub and log in with 'hf auth login'"
        ) from e
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as e:
        raise UserError(
            f"{at} is not on the Hub: check model.path and model.revision "
            "(a private repository needs 'hf auth login')"
        ) from e
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as e:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        raise UserError(
            f"{at} is not downloaded and {why}: run 'hf download {repo}' where there is a network, "
            "or point model.path at a local folder"
        ) from e
    except Exception as e:  # disk, network: errors of whatever HTTP library the Hub client uses
        first = first_line(e)
        raise UserError(
            f"could not download {at} ({first}): check the network and the free disk space, "
            "or point model.path at a local folder"
        ) from e
    return Path(found)


def _reachable(endpoint: str) -> bool:
    """Whether the Hub answers at all: its client would retry for half a minute to find out."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # a proxy may reach what this machine cannot
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        with socket.create_connection((url.hostname or "", port), timeout=PATIENCE):
            return True
    except OSError:
        return False
