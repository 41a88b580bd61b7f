"""What all artifacts share: a folder that is written whole, and read with suspicion.

config.json          kind, version, what it is bound to, and all figures
model.safetensors    every tensor; names, shapes and types are those that the config implies
README.md, *.svg     for readers
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from semspec.errors import UserError, first_line
from semspec.files import _write_all, dumps, replacing
from semspec.hub import locate
from semspec.models import EMBEDDED, beside_package

CONFIG, TENSORS, CARD = "config.json", "model.safetensors", "README.md"
PARTS = {".safetensors", ".json", ".jsonl", ".md", ".svg", ".png", ".txt", ""}  # what may be there
LARGEST_CONFIG = 4 * 2**20  # bytes; what is larger is no config of ours
Layout = Mapping[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]
"""Name -> shape (-1: any length) and the types it may be stored in."""


def find(folder_or_repo: str, revision: str | None = None) -> Path:
    """The local folder of an artifact: itself, one shipped with the package, or from the Hub."""
    if folder_or_repo.startswith(EMBEDDED):
        folder = beside_package("hub_artifacts") / folder_or_repo.removeprefix(EMBEDDED)
        if not folder.is_dir():
            raise UserError(f"no artifact {folder_or_repo} is shipped with the package")
        return folder
    return locate(folder_or_repo, revision)


def read_config(folder: Path, kind: str, version: int) -> dict[str, Any]:
    """config.json of an artifact of this kind."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise UserError(f"{path} is too large for a {kind}'s config: take another artifact")
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {CONFIG}: it is no {kind}'s folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict) or config.get("kind") != kind:
        found = config.get("kind") if isinstance(config, dict) else None
        raise UserError(f"{folder} holds '{found or 'something else'}', not a {kind}")
    if config.get("version") != version:
        raise UserError(
            f"{folder} is a {kind} of version {config.get('version')}, this semspec reads version"
            f" {version}: update semspec, or train it again"
        )
    strange = sorted(f.name for f in folder.iterdir() if f.is_file() and f.suffix not in PARTS)
    strange = [name for name in strange if not name.startswith(".")]
    if strange:
        raise UserError(
            f"{folder} holds {', '.join(strange[:5])}: no part of a {kind} (safetensors and JSON only)"
        )
    return config


def read_tensors(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """Exactly the tensors of the layout, every number finite."""
    path = folder / TENSORS
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            if names != set(layout):
                missing = ", ".join(sorted(set(layout) - names)) or "none"
                extra = ", ".join(sorted(names - set(layout))[:5]) or "none"
                raise UserError(f"{path}: missing tensors: {missing}; unknown ones: {extra}")
            for name, (shape, types) in layout.items():
                there = file.get_slice(name)
                _check_shape(path, name, tuple(there.get_shape()), shape)
                tensor = file.get_tensor(name)
                if tensor.dtype not in types:
                    raise UserError(f"{path}: {name} is {tensor.dtype}, not {types[0]}")
            tensors = {name: file.get_tensor(name) for name in layout}
    except FileNotFoundError as error:
        raise UserError(f"{folder} has no {TENSORS}") from error
    except (SafetensorError, OSError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: {name} holds numbers that are not finite")
    return tensors


def _check_shape(path: Path, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    alike = len(found) == len(wanted) and all(
        w in (-1, f) for f, w in zip(found, wanted, strict=True)
    )
    if not alike:
        raise UserError(f"{path}: {name} has the shape {list(found)}, not {list(wanted)}")


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    texts: Mapping[str, str],
) -> None:
    """Writes an artifact beside its place first, so that the folder is old or new, never half."""
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    contents = {
        TENSORS: save({name: t.contiguous() for name, t in tensors.items()}),
        CONFIG: (dumps(config, indent=2) + "\n").encode(),
    } | {name: text.encode() for name, text in texts.items()}
    for name, data in contents.items():
        with replacing(beside / name) as fd:
            _write_all(fd, data)
    if folder.exists():
        if not (folder / CONFIG).exists() and any(folder.iterdir()):
            shutil.rmtree(beside)
            raise UserError(f"{folder} holds something else: choose another folder")
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)  # noqa: PTH105
        beside.replace(folder)
        shutil.rmtree(old)
    else:
        beside.replace(folder)
