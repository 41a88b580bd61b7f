"""From ``model.path`` to a folder with a configuration and safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semspec.errors import UserError

# top level only; "consolidated" is a second copy of the same weights in another naming
WANTED = ["*.safetensors", "*.json", "tokenizer*", "*.txt", "*.model", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


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
    try:
        found = snapshot_download(
            repo, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
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
        first = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise UserError(
            f"could not download {at} ({first}): check the network and the free disk space, "
            "or point model.path at a local folder"
        ) from e
    return Path(found)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model's folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise UserError(f"no {path.name} in {path.parent}: is it a model's folder?") from e
    except (ValueError, OSError) as e:
        raise UserError(f"cannot read {path} ({e}): download the model again") from e
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object: download the model again")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those of the index, or the only one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{index} has no weight_map: download the model again")
        names = sorted({str(name) for name in shards.values()})
        if stray := [name for name in names if Path(name).name != name]:
            raise UserError(f"{index} points outside its folder ({stray[0]}): do not trust it")
        if missing := [name for name in names if not (folder / name).exists()]:
            raise UserError(f"{folder} lacks {missing[0]}: the download is incomplete, repeat it")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    found = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise UserError(f"{len(found)} safetensors files in {folder} and no {index.name}")
    if any(next(folder.glob(pattern), None) for pattern in PICKLES):
        raise UserError(
            f"{folder} has pickled weights only, which are never read: convert them to safetensors "
            "(save_pretrained does) or choose a revision that has them"
        )
    raise UserError(f"no model.safetensors in {folder}: download or train the model first")
