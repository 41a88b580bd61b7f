"""manifest.json: size and sha256 of every file of an artifact, and of the manifest itself.

It has one way to be written, so that a flipped byte anywhere in the folder, in the manifest too, is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from semspec.errors import UserError, first_line
from semspec.storage import foreign, json_schema
from semspec.storage.files import _write_all, dumps, replacing

NAME, FORMAT = "manifest.json", 1
LARGEST = 2**20  # bytes of a manifest
LARGEST_HASHED = 256 * 2**20  # bytes of models' and datastores' files that every load hashes
THEIRS = {".gitattributes", ".cache"}  # what the Hub and its client put beside an artifact
UNFINISHED = ".semspec-unfinished"  # marks a folder of ours that is being written or removed
PICKLES = {
    *(".pkl", ".pickle", ".p", ".pt", ".pth", ".ckpt", ".bin", ".joblib", ".dill", ".npy"),
    *(".npz", ".mar", ".pyc", ".py", ".so"),
}
PARTS = {".safetensors", ".json", ".jsonl", ".md", ".svg", ".png", ".txt", ".jinja", ""}
"""Suffixes that a part of an artifact may have."""

_HASH = {"type": "string", "minLength": 64, "maxLength": 64}
_KEYS = {"format", "kind", "version", "files", "sha256"}
_SCHEMA = {
    "type": "object",
    "required": sorted(_KEYS),
    "additionalProperties": False,
    "properties": {
        "format": {"const": FORMAT},
        "kind": {"type": "string", "minLength": 1, "maxLength": 64},
        "version": {"type": "integer", "minimum": 1},
        "files": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["size", "sha256"],
                "additionalProperties": False,
                "properties": {"size": {"type": "integer", "minimum": 0}, "sha256": _HASH},
            },
        },
        "sha256": _HASH,
    },
}


def sha256(path: Path) -> str:
    with foreign.open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashed(path: Path) -> str:
    """sha256 of a file, computed anew only when it was written since."""
    stamp = foreign.stamp(path)
    return sha256(path) if stamp is None else _hashed(path, stamp)


@lru_cache(maxsize=4096)
def _hashed(path: Path, _: tuple[int, ...]) -> str:
    return sha256(path)


def names(folder: Path) -> list[str]:
    """Everything in the folder but the manifest, and what the Hub's client leaves there."""
    beside = THEIRS | {NAME, UNFINISHED}
    return sorted(f.name for f in folder.iterdir() if f.name not in beside)


def strange(names: Iterable[str]) -> str | None:
    """What is wrong with the first name that no artifact may hold; None where all are in order."""
    for name in sorted(names):
        suffix = Path(name).suffix.lower()
        if suffix in PICKLES:
            return f"{name}: such a file can run code when it is read (safetensors and JSON only)"
        if suffix not in PARTS or name.startswith(".") or "/" in name or "\\" in name:
            return f"{name}: no part of an artifact (safetensors and JSON only)"
    return None


def strange_in_repository(names: Iterable[str]) -> str | None:
    return strange(name for name in names if name not in THEIRS)


def make(kind: str, version: int, files: Mapping[str, tuple[int, str]]) -> bytes:
    """The manifest of files, name -> size and sha256."""
    told: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "version": version,
        "files": {n: {"size": s, "sha256": h} for n, (s, h) in sorted(files.items())},
    }
    return _written(told | {"sha256": hashlib.sha256(dumps(told).encode()).hexdigest()})


def _written(told: Mapping[str, Any]) -> bytes:
    return (dumps(told, indent=2) + "\n").encode()


def seal(folder: Path, kind: str, version: int) -> None:
    """Writes the manifest of what is in the folder now."""
    found = names(folder)
    wrong = strange(found) or next((f"{n}: no plain file" for n in found if not _plain(folder / n)), None)  # fmt: skip
    if wrong:
        raise UserError(f"{folder} holds {wrong}: remove it")
    files = {n: ((folder / n).stat().st_size, sha256(folder / n)) for n in found}
    with replacing(folder / NAME) as fd:
        _write_all(fd, make(kind, version, files))


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def read(folder: Path) -> dict[str, Any] | None:
    """Read the folder's manifest; None where there is none, UserError where it is not intact."""
    path = folder / NAME
    try:
        data = foreign.read_bytes(path, LARGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {first_line(error)}: take another artifact"
        ) from error
    try:
        told = foreign.parse(data)
        json_schema.check(told, _SCHEMA)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    files = {n: (f["size"], f["sha256"]) for n, f in told["files"].items()}
    if data != make(told["kind"], told["version"], files):
        raise UserError(f"{path} is damaged: it is not as it was written")
    wrong = strange(files)
    if wrong:
        raise UserError(f"{path} lists {wrong}")
    assert isinstance(told, dict)
    return told


def check(
    folder: Path,
    manifest: Mapping[str, Any] | None,
    only: Iterable[str],
    largest: int | None = None,
) -> None:
    """Raise UserError where some files differ from the folder's manifest, as of ``differences``."""
    unlike = differences(folder, manifest, only, largest) if manifest else []
    if unlike:
        raise UserError(
            f"{folder} is not as it was made ({unlike[0]}): take an intact copy, or if the change is"
            f" yours, run python -m semspec.artifacts seal path={folder}"
        )


def is_ours(folder: Path) -> bool:
    """Whether the folder's manifest.json is one of ours, intact or not: others use the name, too."""
    try:
        told = foreign.parse(foreign.read_bytes(folder / NAME, LARGEST))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return isinstance(told, dict) and len(_KEYS & set(told)) >= 3


def differences(
    folder: Path,
    manifest: Mapping[str, Any],
    only: Iterable[str] | None = None,
    largest: int | None = None,
) -> list[str]:
    """List how the folder, or some of its files, differ from the manifest, a line each.

    Files of more than ``largest`` bytes are compared by their size alone.
    """
    told: list[str] = []
    listed = manifest["files"]
    wanted = set(listed) if only is None else set(only)
    if only is None:
        told += [f"{name} is not in the manifest" for name in names(folder) if name not in listed]
    else:
        told += [f"{n} is not in the manifest" for n in sorted(wanted - set(listed)) if (folder / n).exists()]  # fmt: skip
    for name in sorted(wanted & set(listed)):
        path, size = folder / name, listed[name]["size"]
        if not path.is_file():
            told.append(f"{name} is missing")
        elif path.stat().st_size != size:
            told.append(f"{name} has {path.stat().st_size} bytes, not {size}")
        elif (largest is None or size <= largest) and hashed(path) != listed[name]["sha256"]:
            told.append(f"{name} was changed: its sha256 is another one")
    return told
