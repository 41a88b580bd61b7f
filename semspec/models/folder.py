"""Read a model's folder: its configuration and its safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.models.intact import AGAIN
from semspec.storage import foreign

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model's folder; raise UserError if there is none."""
    try:
        return foreign.read_object(path, way_out=AGAIN, finite=False)
    except foreign.MissingFileError as error:
        raise UserError(f"{path.parent} has no {path.name}: give a model's folder") from error


def weight_files(folder: Path) -> list[Path]:
    """Return a model's safetensors files: those of the index, or the only one.

    Raise UserError if files are missing, ambiguous, only pickled, or outside the folder.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{index} has no weight_map: download the model again")
        names = sorted({str(name) for name in shards.values()})
        if stray := [name for name in names if Path(name).name != name]:
            raise UserError(f"{index} points outside its folder ({stray[0]}): do not trust it")
        if missing := [name for name in names if not (folder / name).exists()]:
            raise UserError(
                f"{folder} lacks {missing[0]}: the download is incomplete, download it again"
            )
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    found = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise UserError(
            f"{folder} has {len(found)} safetensors files and no {index.name}: download the"
            " model again"
        )
    if any(next(folder.glob(pattern), None) for pattern in PICKLES):
        raise UserError(
            f"{folder} has only pickled weights, which are never read: convert them to"
            " safetensors (save_pretrained does) or choose a revision that has them"
        )
    raise UserError(f"{folder} has no model.safetensors: download or train the model first")
