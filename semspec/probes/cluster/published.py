"""Find entailment models as others publish them, and convert those that are pickled.

The paper's judge, ``microsoft/deberta-v2-xlarge-mnli``, has only ``pytorch_model.bin``, which no run reads.
``python -m semspec.convert_nli`` reads it once, in a confined process (``semspec.heads.pickled``), and leaves a
safetensors copy where ``ready`` finds it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from semspec.errors import UserError
from semspec.heads.pickled import hand_over
from semspec.heads.published import converted_place
from semspec.models.folder import read_json
from semspec.models.hub import known_files, locate, split_revision
from semspec.models.location import EMBEDDED, ModelConfig
from semspec.models.wanted import MODEL, Wanted
from semspec.storage import swap
from semspec.storage.files import os_errors_as_user_errors, sync_folder, write_json
from semspec.storage.tensors import tensor_shapes

COMMAND = "python -m semspec.convert_nli"
PAPERS = "microsoft/deberta-v2-xlarge-mnli"  # its main branch is pickled
WEIGHTS, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
PICKLED = Wanted(
    noun="entailment model",
    option="path",
    patterns=("pytorch_model*.bin", *(p for p in MODEL.patterns if p != "*.safetensors")),
    unwanted=("*/*",),
)
WAY_OUT = "take an entailment model published as safetensors"


def fetched(model: ModelConfig) -> Path:
    """Return the folder to load a model from; raise UserError, with the command, if it must be converted first."""
    return ready(model.fetch())


def ready(folder: Path) -> Path:
    """Return the folder itself, or the converted copy of a Hub snapshot.

    Raises UserError, naming the ways out, if there are no weights as safetensors.
    """
    if any(folder.glob("*.safetensors")):
        return folder
    copy = converted_place(folder)
    if copy is not None and (copy / "config.json").is_file():
        return copy
    if copy is None:
        if not _pickled_only(file.name for file in folder.iterdir()):
            return folder  # loading it will say what it lacks
        place, instead = str(folder), f" out={shlex.quote(f'{folder}-converted')}"
        ways = f"and give cluster.model={shlex.quote(f'{folder}-converted')}"
    else:
        repo = folder.parents[1].name.removeprefix("models--").replace("--", "/", 1)
        place, instead = f"{repo}@{folder.name}", ""
        ways = "or, if its page on the Hub has a branch with safetensors, give cluster.revision="
    raise UserError(
        f"{place} has no safetensors: pickled weights (.bin) are never read by a run; convert it once:"
        f" {COMMAND} path={shlex.quote(place)}{instead}, {ways}"
    )


def needs_conversion(place: str, revision: str | None = None) -> str | None:
    """Return the whole command that converts a model before it can be used.

    None if it loads as it is, if it was converted before, or if this is unknown, because it is not downloaded and the Hub
    cannot be reached (the paper's judge is known to be pickled). Raises UserError if the Hub says that there is no such
    repository.
    """
    local = Path(place).expanduser()
    if place.startswith(EMBEDDED):
        return None
    if local.is_dir():
        if not _pickled_only([file.name for file in local.iterdir()]):
            return None
        return f"{COMMAND} path={shlex.quote(place)} out={shlex.quote(f'{place}-converted')}"
    repo, given = split_revision(place)
    asked = revision or given
    command = f"{COMMAND} path={shlex.quote(f'{repo}@{asked}' if asked else repo)}"
    known = known_files(repo, asked, PICKLED)
    if known is None:
        return command if repo == PAPERS and not asked else None
    snapshot, names = known
    copy = converted_place(snapshot)
    there = copy is not None and (copy / "config.json").is_file()
    return command if _pickled_only(names) and not there else None


def _pickled_only(names: Iterable[str]) -> bool:
    names = list(names)
    pickled = any(name.endswith(".bin") for name in PICKLED.of(names))
    return pickled and not any(name.endswith(".safetensors") for name in MODEL.of(names))


@dataclass(frozen=True, slots=True)
class Converted:
    """Where a copy is, and lines to tell the user about it."""

    folder: Path
    told: list[str]


def convert(place: str, out: Path | None, strict: bool = True) -> Converted:
    """Make a safetensors copy of a pickled entailment model: a folder, or a repository with its revision.

    Without ``out``, a repository's copy goes where runs that name the repository find it. Raises UserError
    if there are no pickled weights, or ``out`` exists.
    """
    repo, revision = split_revision(place)
    folder = locate(repo, revision, PICKLED)
    target = out or converted_place(folder)
    if target is None:
        raise UserError(f"out= is missing: give a folder for what is made of {place}")
    target = swap.place(target)
    swap.tidy(target)
    if target.exists():
        if out is None and (target / "config.json").is_file():
            return Converted(target, ["it was converted before"])
        raise UserError(f"{target} already exists: give another out=")
    told: list[str] = []
    with os_errors_as_user_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with swap.workplace(target) as beside:
            made = beside / "made"
            made.mkdir()
            for name in PICKLED.of(sorted(f.name for f in folder.iterdir())):
                if not name.endswith(".bin") and name != INDEX:
                    shutil.copyfile(folder / name, made / name)
            shards = _shards(folder)
            for number, path in enumerate(shards, 1):
                name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
                file = made / (name if len(shards) > 1 else "model.safetensors")
                hand_over(path, file, strict=strict, way_out=WAY_OUT)
                told.append(f"{path.name}: read in a {'confined' if strict else 'limited'} process")
            if len(shards) > 1:
                _write_index(made)
            sync_folder(made)
            made.rename(target)
            sync_folder(target.parent)
    return Converted(target, told)


def _shards(folder: Path) -> list[Path]:
    """Return the files of the weights; raise UserError if some or all are missing."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / WEIGHTS).exists():
            raise UserError(f"{folder} has no {WEIGHTS}: nothing there is to be converted")
        return [folder / WEIGHTS]
    mapped = read_json(index).get("weight_map")
    names = sorted(set(map(str, mapped.values()))) if isinstance(mapped, dict) else []
    wrong = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if wrong or not names:
        raise UserError(f"{index} names {wrong[:1]!a}, which is not there: download it again")
    return [folder / name for name in names]


def _write_index(folder: Path) -> None:
    where = {
        name: file.name
        for file in sorted(folder.glob("*.safetensors"))
        for name in tensor_shapes([file])
    }
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})
