"""Convert heads that others published to our artifacts: one safetensors file with one naming.

made = convert("owner/head", None)     # pickled files are read by a confined process
made.artifact.kind, made.told          # and what was mapped, a line each
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semspec.artifacts import base, eagle3_head, inspection
from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.artifacts.medusa_head import MedusaHead
from semspec.errors import UserError, first_line
from semspec.heads import eagle3, medusa
from semspec.heads.pickled import hand_over
from semspec.heads.published import (
    HEAD,
    MODEL_WITH_HEADS,
    PICKLED,
    converted_place,
    eagle3_config,
    eagle3_names,
    is_eagle3,
    is_medusa,
    medusa_names,
    pickled_files,
    tensor_files,
)
from semspec.models.folder import read_json
from semspec.models.hub import locate, split_revision
from semspec.storage import manifests, swap
from semspec.storage.files import os_errors_as_user_errors
from semspec.storage.tensors import tensor_shapes

LICENSE = "other"  # the authors' own, which the source's card names


@dataclass(frozen=True, slots=True)
class Converted:
    """The artifact, its folder, and lines that tell what was mapped."""

    artifact: base.Artifact
    folder: Path
    told: list[str]


def convert(place: str, out: Path | None, strict: bool = True) -> Converted:
    """Make an artifact from a published head: a folder, or a repository of the Hub with its revision.

    Without ``out``, the artifact of a repository goes where runs that name the repository find it.
    Raises UserError if the source holds no head that we know, or ``out`` holds something else.
    """
    folder = fetched(place)
    target = out or converted_place(folder)
    if target is None:
        raise UserError(f"out= is missing: give a folder for what is made of {place}")
    target = swap.place(target)
    if target.exists() and not manifests.is_ours(target):
        raise UserError(f"{target} already exists: give another out=")
    config = read_json(folder / "config.json")
    pickles, told = ([], []) if any(folder.glob("*.safetensors")) else pickled_files(folder)
    with os_errors_as_user_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with swap.workplace(target) as beside:
            files = _handed_over(pickles, beside, told, strict)
            sources = pickles or tensor_files(folder, medusa.FILE, "model.safetensors")
            artifact = _made(folder, config, files or sources, told)
    artifact.config["license"] = LICENSE
    artifact.config["converted_from"] = _source(place, folder, sources)
    try:
        artifact.save(target)
    except ValueError as error:  # sizes that no model has
        raise UserError(f"{folder} is no head that can be kept ({first_line(error)})") from error
    return Converted(inspection.check(target), target, told)


def fetched(place: str) -> Path:
    """Return the folder of a published head; from the Hub, download pickled files only if there are no others."""
    repo, revision = split_revision(place)
    folder = locate(repo, revision, HEAD)
    if not any(folder.glob("*.safetensors")):
        folder = locate(repo, revision, PICKLED)
    return folder


def _handed_over(pickles: list[Path], beside: Path, told: list[str], strict: bool) -> list[Path]:
    files = []
    for number, path in enumerate(pickles):
        files.append(beside / f"{number}.safetensors")
        hand_over(path, files[-1], MODEL_WITH_HEADS, strict)
        told.append(f"{path.name}: read in a {'confined' if strict else 'limited'} process")
    return files


def _made(
    folder: Path, config: Mapping[str, Any], files: list[Path], told: list[str]
) -> base.Artifact:
    shapes = tensor_shapes(files)
    if is_medusa(shapes):
        return _medusa(config, files, told)
    if is_eagle3(shapes):
        return _eagle3(folder, config, files, told)
    shown = ", ".join(ascii(name[:64])[1:-1] for name in sorted(shapes)[:3]) or "none"
    raise UserError(
        f"{folder} holds neither an EAGLE-3 head nor Medusa heads (tensors: {shown}; the one has fc.weight and midlayer.* or"
        " layers.0.*, the others 0.0.linear.weight or blocks.0.layers.0.weight): name one with path=; docs/heads.md"
        " lists the layouts that are read"
    )


def _eagle3(
    folder: Path, config: Mapping[str, Any], files: list[Path], told: list[str]
) -> Eagle3Head:
    shapes = tensor_shapes(files)
    naming = eagle3_names(shapes)
    told += naming.told
    own = eagle3_config(config, folder / "config.json")
    shape = eagle3.own_shape(folder, own)
    if own.get("target_hidden_size") is None:  # fc shows it: it reads three states
        columns = (*shapes[naming.names["fc.weight"]], 0)[1]
        shape = replace(shape, target_width=max(1, columns // 3))
    if "transformer_layer_config" in config:
        told.append(
            "transformer_layer_config: laid flat;"
            f" norm_before_residual={str(shape.normed_residual).lower()}"
        )
    tensors = eagle3.read_checkpoint(files, shape)
    if "t2d" in tensors and "t2d" not in naming.names:
        told.append("t2d: derived from d2t")
    if "d2t" in naming.names and "d2t" not in tensors:
        told.append("d2t and t2d: left out, as they map every token to itself")
    biases = [name for name in tensors if name.endswith(".bias")]
    told += [f"{len(biases)} biases: kept"] * bool(biases)
    tied = own.get("tie_word_embeddings") is True and eagle3.EMBEDDING in tensors
    for name in (eagle3.EMBEDDING, eagle3.LAST):
        whose = "its own embedding" if tied and name == eagle3.LAST else "the target's own"
        told += [f"{name}: {whose}"] * (name not in tensors)
    sizes: dict[str, Any] = {
        **eagle3.sizes_of(shape),
        "norm_before_residual": shape.normed_residual,
        "architectures": [eagle3_head.ARCHITECTURE],
    }
    if shape.target_width != shape.width:
        sizes["target_hidden_size"] = shape.target_width
    return Eagle3Head(own | sizes, tensors)


def _medusa(config: Mapping[str, Any], files: list[Path], told: list[str]) -> MedusaHead:
    shapes = tensor_shapes(files)
    naming = medusa_names(shapes)
    told += naming.told
    width = shapes.get(naming.names.get("0.0.linear.weight", ""), (0,))[0]
    rows = shapes.get(naming.names.get(f"0.{naming.blocks}.weight", ""), ())
    vocabulary = rows[0] if rows else config.get("vocab_size", 0)
    if not width or type(vocabulary) is not int or vocabulary < 1:
        raise UserError(
            "the heads have no last matrix of their own and config.json no vocab_size: add the"
            " target's vocab_size to config.json"
        )
    shape = medusa.shape_of(config, naming, width, vocabulary)
    tensors = medusa.read_checkpoint(files, shape, naming)
    claimed = config.get("medusa_num_heads", config.get("num_heads"))
    if claimed != shape.heads:
        told.append(f"config.json says {ascii(claimed)[:20]} heads, the file has {shape.heads}: all are kept")  # fmt: skip
    if not any(name.endswith(".bias") for name in naming.names):
        told.append("the blocks have no biases: 0")
    told += ["the last matrix: the target's own, for all heads"] * (not shape.own_last)
    base_model = config.get("base_model_name_or_path")
    made = medusa.config_of(shape, base_model if isinstance(base_model, str) else "unknown")
    shared = Counter(naming.names.values())  # safetensors stores a matrix for each name
    own = {n: t.clone() if shared[naming.names.get(n, "")] > 1 else t for n, t in tensors.items()}
    return MedusaHead(made, own)


def _source(place: str, folder: Path, files: list[Path]) -> dict[str, Any]:
    """Return what an artifact was made from: a repository and its commit, or a folder's name, and hashes."""
    hashes = {path.name: manifests.hashed(path) for path in files}
    if converted_place(folder) is not None:
        return {"name": split_revision(place)[0], "revision": folder.name, "files": hashes}
    return {"name": folder.resolve().name[:200] or "head", "files": hashes}
