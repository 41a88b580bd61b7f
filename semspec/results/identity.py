"""Identify the weights that a run loads, cheaply even for large folders.

    commit 0123...          a snapshot of a Hub repository
    sha256 0123...          a local folder: a hash over the files that are read from it
    sampled-sha256 0123...  the same, but large files only by size, header and evenly spread pieces

Reading a 60 GB model in full would take a minute at every start. In a sampled file a change of a few bytes may go
unnoticed, unless a manifest.json beside it lists the file's hash; retrained weights differ everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from semspec.models import packaged
from semspec.models.hub import Found
from semspec.models.location import EMBEDDED
from semspec.storage.files import read_json
from semspec.storage.packaged import beside_package

READ = frozenset({".safetensors", ".json", ".jsonl", ".txt", ".model", ".jinja"})
NOT_READ = frozenset({"manifest.json", "evaluation.json", "training.json"})  # only for people
WHOLE = 1 << 28  # bytes of a folder that are hashed in full, file by file in order of name
HEADER = 1 << 20  # bytes hashed at the start of a sampled file
PIECES, PIECE = 16, 1 << 16  # number and length of its further pieces

_File = tuple[str, int, int, int, str]  # name, size, mtime, inode, hash in the manifest


def identities(found: Mapping[str, Found]) -> dict[str, str]:
    """Return each folder's identity, by its name as given, ``embedded/NAME`` or ``packaged/NAME``."""
    shipped = str(beside_package("hub_artifacts"))
    named = {
        packaged.name_of(place.folder) or n.replace(f"{shipped}/", EMBEDDED, 1): place
        for n, place in found.items()
    }
    return {name: identity_of(place) for name, place in sorted(named.items())}


def identity_of(found: Found) -> str:
    return f"commit {found.folder.name}" if found.on_hub else digest_of(found.folder)


def digest_of(folder: Path) -> str:
    """Return the identity of a local folder, independent of its name and location."""
    manifest = read_json(folder / "manifest.json")
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    listed = listed if isinstance(listed, dict) else {}
    files: list[_File] = []
    for path in sorted(folder.iterdir()):
        if path.suffix in READ and path.name not in NOT_READ and path.is_file():
            state, entry = path.stat(), listed.get(path.name)
            known = str(entry.get("sha256")) if isinstance(entry, dict) else ""
            files.append((path.name, state.st_size, state.st_mtime_ns, state.st_ino, known))
    return _digest(folder.resolve(), tuple(files))


@lru_cache(maxsize=64)
def _digest(folder: Path, files: tuple[_File, ...]) -> str:
    found, left, sampled = hashlib.sha256(), WHOLE, False
    for name, size, _, _, listed in files:
        found.update(f"{name} {size}\n".encode())
        with (folder / name).open("rb") as file:
            if size <= left:
                left -= size
                found.update(hashlib.file_digest(file, "sha256").digest())
                continue
            sampled = True
            found.update(listed.encode())
            found.update(file.read(HEADER))
            for number in range(1, PIECES + 1):
                file.seek(max(0, size - PIECE) * number // PIECES)
                found.update(file.read(PIECE))
    return f"{'sampled-' * sampled}sha256 {found.hexdigest()}"
