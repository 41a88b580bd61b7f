"""manifest.json: size and sha256 of every file of an artifact, and the manifest's own sha256.

There is exactly one valid way to write it, so a flipped byte anywhere in the folder is found, even in the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from semspec.errors import UserError, first_line
from semspec.storage import foreign, json_schema
from semspec.storage.files import dumps, write_bytes
from semspec.storage.json_schema import integer, mapping, record, string

NAME, FORMAT = "manifest.json", 1
LARGEST = 2**20  # bytes of a manifest
LARGEST_HASHED = 2**28  # bytes: larger files of models and datastores are not hashed at each load
THEIRS = {".gitattributes", ".cache"}  # added to an artifact's folder by the Hub and its client
UNFINISHED = ".semspec-unfinished"  # marks a folder that semspec is writing or removing
PICKLES = {
    *(".pkl", ".pickle", ".p", ".pt", ".pth", ".ckpt", ".bin", ".joblib", ".dill", ".npy"),
    *(".npz", ".mar", ".pyc", ".py", ".so"),
}
PARTS = {".safetensors", ".json", ".jsonl", ".md", ".svg", ".png", ".txt", ".jinja", ""}
"""Suffixes that a part of an artifact may have."""

_HASH = string(64, 64)
_SCHEMA = record(
    files=mapping(record(size=integer(0), sha256=_HASH)),
    format={"const": FORMAT},
    kind=string(1, 64),
    sha256=_HASH,
    version=integer(1),
)


def sha256(path: Path) -> str:
    with foreign.open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashed(path: Path) -> str:
    """Return the sha256 of a file, cached until the file is written again."""
    stamp = foreign.stamp(path)
    return sha256(path) if stamp is None else _hashed(path, stamp)


@lru_cache(maxsize=4096)
def _hashed(path: Path, _: tuple[int, ...]) -> str:
    return sha256(path)


def names(folder: Path) -> list[str]:
    """List the files in the folder except the manifest and those added by the Hub or its client."""
    beside = THEIRS | {NAME, UNFINISHED}
    return sorted(f.name for f in folder.iterdir() if f.name not in beside)


def strange(names: Iterable[str]) -> str | None:
    """Describe the first name that no artifact may hold; return None if all are allowed."""
    for name in sorted(names):
        suffix = Path(name).suffix.lower()
        if suffix in PICKLES:
            return f"{name}: such a file can run code when it is read (safetensors and JSON only)"
        if suffix not in PARTS or name.startswith(".") or "/" in name or "\\" in name:
            return f"{name}: not part of an artifact (safetensors and JSON only)"
    return None


def strange_in_repository(names: Iterable[str]) -> str | None:
    return strange(name for name in names if name not in THEIRS)


def make(kind: str, version: int, files: Mapping[str, tuple[int, str]]) -> bytes:
    """Return the manifest's bytes for ``files``, a mapping from name to size and sha256."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "version": version,
        "files": {n: {"size": s, "sha256": h} for n, (s, h) in sorted(files.items())},
    }
    content["sha256"] = hashlib.sha256(dumps(content).encode()).hexdigest()
    return (dumps(content, indent=2) + "\n").encode()


def seal(folder: Path, kind: str, version: int) -> None:
    """Write the manifest for the folder's files; raise UserError if one is not allowed."""
    found = names(folder)
    plain = {n for n in found if (folder / n).is_file() and not (folder / n).is_symlink()}
    wrong = strange(found) or next(
        (f"{n}: not a regular file" for n in found if n not in plain), None
    )
    if wrong:
        raise UserError(f"{folder} contains {wrong}: remove it")
    files = {n: ((folder / n).stat().st_size, sha256(folder / n)) for n in found}
    write_bytes(folder / NAME, make(kind, version, files))


def read(folder: Path) -> dict[str, Any] | None:
    """Read the folder's manifest (None if there is none); raise UserError if it is damaged."""
    path = folder / NAME
    try:
        data = foreign.read_bytes(path, LARGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{path} cannot be read: {reason}: use another artifact") from error
    try:
        manifest = foreign.parse(data)
        json_schema.check(manifest, _SCHEMA)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    files = {n: (f["size"], f["sha256"]) for n, f in manifest["files"].items()}
    if data != make(manifest["kind"], manifest["version"], files):
        raise UserError(f"{path} is damaged: its checksum does not match")
    if wrong := strange(files):
        raise UserError(f"{path} lists {wrong}")
    assert isinstance(manifest, dict)
    return manifest


def check(
    folder: Path,
    manifest: Mapping[str, Any] | None,
    only: Iterable[str],
    largest: int | None = None,
) -> None:
    """Raise UserError if any of the files in ``only`` differs from the folder's manifest."""
    if unlike := differences(folder, manifest, only, largest) if manifest else []:
        raise UserError(
            f"{folder} was changed after it was made ({unlike[0]}): use an intact copy, or"
            f" if the change is yours, run python -m semspec.artifacts seal path={folder}"
        )


def is_ours(folder: Path) -> bool:
    """Return True if semspec wrote the folder's manifest.json, even if it is damaged now."""
    try:
        content = foreign.parse(foreign.read_bytes(folder / NAME, LARGEST))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return isinstance(content, dict) and len(_SCHEMA["properties"].keys() & content) >= 3


def differences(
    folder: Path,
    manifest: Mapping[str, Any],
    only: Iterable[str] | None = None,
    largest: int | None = None,
) -> list[str]:
    """List how a folder, or ``only`` these files, differ from the manifest; files above ``largest`` only by size."""
    listed = manifest["files"]
    if only is None:
        wanted, there = set(listed), names(folder)
    else:
        wanted = set(only)
        there = [name for name in sorted(wanted) if (folder / name).exists()]
    found = [f"{name} is not in the manifest" for name in there if name not in listed]
    for name in sorted(wanted & set(listed)):
        path, size = folder / name, listed[name]["size"]
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != size:
            found.append(f"{name} has {path.stat().st_size} bytes, not {size}")
        elif (largest is None or size <= largest) and hashed(path) != listed[name]["sha256"]:
            found.append(f"{name} was changed: its sha256 differs")
    return found
