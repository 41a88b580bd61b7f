"""Find the files of heads as others publish them, and map the names of their tensors to ours.

EAGLE-3 heads come with EAGLE-3's own names or speculators', Medusa heads with Medusa's own, TGI's or
vLLM's (docs/heads.md). Safetensors are read where they are. Pickled files are read only by
``python -m semspec.convert_head``, which puts a copy where ``ready`` finds it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.models.folder import PICKLES, read_json, weight_files
from semspec.models.hub import known_files, split_revision
from semspec.models.location import EMBEDDED
from semspec.models.wanted import Wanted
from semspec.storage import manifests, swap

COMMAND = "python -m semspec.convert_head"
HEAD = Wanted(
    noun="head", option="path", patterns=("*.safetensors", "*.json"), unwanted=("*/*",)
)  # fmt: skip
NO_WEIGHTS = ("training_args*", "optimizer*", "scheduler*", "rng_state*")
PICKLED = Wanted(
    noun="head", option="path", patterns=(*PICKLES, "*.json"), unwanted=("*/*", *NO_WEIGHTS)
)  # fmt: skip
MODEL_WITH_HEADS = (
    "medusa_head.",
    "medusa_heads.",
)  # prefixes of the heads' names, in a whole model's file
_MEDUSA = re.compile(r"(\d{1,3})\.(\d{1,3})\.(?:(linear)\.(weight|bias)|weight)")
_VLLM_BLOCK = re.compile(r"blocks\.(\d{1,3})\.layers\.(\d{1,3})\.(weight|bias)")
_VLLM_LAST = re.compile(r"lm_heads\.(\d{1,3})\.weight")
# the target's own, which speculators and older EAGLE checkpoints store beside the head's
_LEFT_OUT = re.compile(r"verifier_(norm|lm_head)\.weight|(.*\.)?rotary_emb\.inv_freq")
_FLAT = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual"),
    *("norm_before_fc", "fc_norm", "norm_output"),
)


@dataclass(frozen=True, slots=True)
class Naming:
    """The stored name of each of a head's tensors, keyed by ours, and lines to tell the user about it."""

    names: Mapping[str, str]
    told: list[str] = field(default_factory=list)


# ---- files --------------------------------------------------------------------------------------


def ready(folder: Path) -> Path:
    """Return the folder to read a head from: itself, or the converted copy of a Hub snapshot.

    Raises UserError, naming the command, if the head is pickled and was not converted.
    """
    if next(folder.glob("*.safetensors"), None) is not None:
        return folder
    copy = converted_place(folder)
    if copy is not None:
        swap.recover(copy)  # if a kill came between two renames
        if (copy / "config.json").is_file():
            return copy
    elif not _pickled_only([file.name for file in folder.iterdir()]):
        raise UserError(
            f"{folder} has no model.safetensors: download the head again, or use another"
        )
    raise UserError(
        (
            f"{folder} has no safetensors, and a run never reads pickled heads (.bin, .pt): convert"
            f" it once: {command(folder)}"
        )
        + (", and name that folder in its place" if copy is None else "")
    )


def command(folder: Path) -> str:
    """Return the whole command that converts the head in a folder or Hub snapshot."""
    if converted_place(folder) is not None:
        repo = folder.parents[1].name.removeprefix("models--").replace("--", "/", 1)
        return f"{COMMAND} path={shlex.quote(f'{repo}@{folder.name}')}"
    return f"{COMMAND} path={shlex.quote(str(folder))} out={shlex.quote(f'{folder}-converted')}"


def converted_place(folder: Path) -> Path | None:
    """Return where the converted copy of a Hub snapshot is kept; None for any other folder."""
    repo = folder.parent.parent
    if folder.parent.name != "snapshots" or not repo.name.startswith("models--"):
        return None
    return repo / ".semspec" / "converted" / folder.name


def needs_conversion(folder_or_repo: str, revision: str | None = None) -> str | None:
    """Return the whole command that converts a head before a run can use it.

    None if the head loads as it is, if it was converted before, or if this is unknown, because it is not downloaded and
    the Hub cannot be reached. Raises UserError if the Hub says that there is no such repository.
    """
    local = Path(folder_or_repo).expanduser()
    if folder_or_repo.startswith(EMBEDDED):
        return None
    if local.is_dir():
        return command(local) if _pickled_only([file.name for file in local.iterdir()]) else None
    repo, given = split_revision(folder_or_repo)
    known = known_files(repo, revision or given, PICKLED)
    if known is None:
        return None
    snapshot, names = known
    copy = converted_place(snapshot)
    if not _pickled_only(names) or (copy is not None and (copy / "config.json").is_file()):
        return None
    pinned = f"{repo}@{revision or given}" if revision or given else repo
    return f"{COMMAND} path={shlex.quote(pinned)}"


def _pickled_only(names: Sequence[str]) -> bool:
    """Return whether files of these names hold pickled weights, and none as safetensors."""
    pickled = [name for name in PICKLED.of(names) if not name.endswith(".json")]
    return bool(pickled) and not any(name.endswith(".safetensors") for name in HEAD.of(names))


def tensor_files(folder: Path, *preferred: str) -> list[Path]:
    """Return the safetensors files that hold a head: a preferred one, all shards, or the only one.

    Raises UserError if there are none, or if they differ from the manifest of a folder of ours.
    """
    known = [folder / name for name in preferred if (folder / name).exists()]
    files = known[:1] or weight_files(folder)
    if manifests.is_ours(folder):
        names = ("config.json", *(file.name for file in files))
        manifests.check(folder, manifests.read(folder), names)
    return files


def pickled_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the pickled files that hold a head, and lines to tell the user about shards left out.

    Of a whole model that was trained with its heads, only the shards with heads. Raises UserError if
    there are none, or several that could be the head.
    """
    index = folder / "pytorch_model.bin.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{index} has no weight_map: download the head again")
        heads = {str(n): str(f) for n, f in shards.items() if n.startswith(MODEL_WITH_HEADS)}
        names = sorted(set((heads or {n: str(f) for n, f in shards.items()}).values()))
        if stray := [name for name in names if Path(name).name != name]:
            raise UserError(
                f"{index} points outside its folder ({stray[0][:64]!a}): do not trust it"
            )
        if missing := [name for name in names if not (folder / name).exists()]:
            raise UserError(
                f"{folder} lacks {missing[0]!a}: the download is incomplete, download it again"
            )
        rest = len({str(f) for f in shards.values()}) - len(names)
        return [folder / n for n in names], [f"{rest} shards without heads: not read"] * (rest > 0)
    for name in ("pytorch_model.bin", "medusa_lm_head.pt"):
        if (folder / name).exists():
            return [folder / name], []
    found = sorted(p for p in folder.iterdir() if PICKLED.of([p.name]) and p.suffix != ".json")
    if len(found) == 1:
        return found, []
    if not found:
        raise UserError(
            f"{folder} contains no head, neither as safetensors nor pickled: check path="
        )
    raise UserError(
        f"{folder} contains {len(found)} pickled files, {found[0].name} and others: leave"
        " only the head's file there"
    )


# ---- EAGLE-3 --------------------------------------------------------------------------------------


def eagle3_config(config: Mapping[str, Any], at: Path) -> dict[str, Any]:
    """Return a head's config in EAGLE-3's own layout; speculators' configs nest the layer's part.

    Raises UserError if it describes no EAGLE-3 head.
    """
    layer = config.get("transformer_layer_config")
    made = dict(config)
    if layer is not None:
        kind = config.get("speculators_model_type")
        if not isinstance(layer, dict) or kind != "eagle3":
            raise UserError(
                f"{at} has speculators' type {ascii(kind)[:40]}: only eagle3 is supported"
            )
        made = dict(layer)
        made |= {name: config[name] for name in _FLAT if config.get(name) is not None}
    states = config.get("eagle_aux_hidden_state_layer_ids")
    if states is not None and "eagle_config" not in made:
        if not isinstance(states, list) or any(type(i) is not int for i in states):
            raise UserError(
                f"{at}: eagle_aux_hidden_state_layer_ids={ascii(states)[:40]} are not layers"
            )
        # outside eagle_config they number the states, the first of which is the embedding's
        made["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in states]}
    return made


def eagle3_names(stored: Iterable[str]) -> Naming:
    """Return EAGLE-3's own names of a checkpoint's tensors; raise UserError if two have the same."""
    names: dict[str, str] = {}
    left = []
    for name in sorted(stored):
        own = name.removeprefix("model.")
        if own.startswith("layers.0."):
            own = f"midlayer.{own.removeprefix('layers.0.')}"
        own = "d2t" if own == "draft_id_to_target_id" else own
        if _LEFT_OUT.fullmatch(own):
            left.append(name)
        elif own in names:
            raise UserError(f"{name[:64]!a} and {names[own][:64]!a} are the same tensor")
        else:
            names[own] = name
    renamed = sum(own != name for own, name in names.items())
    told = [f"{renamed} of {len(names)} tensors renamed to EAGLE-3's own names"] * (renamed > 0)
    return Naming(names, told + _told_left(left))


def is_eagle3(stored: Iterable[str]) -> bool:
    """Return whether tensors of these names are an EAGLE-3 head's."""
    names = eagle3_names(stored).names
    return "fc.weight" in names and any(name.startswith("midlayer.") for name in names)


# ---- Medusa ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MedusaNaming(Naming):
    """The same, with the number of heads and blocks."""

    heads: int = 0
    blocks: int = 0
    vllm: bool = False


def medusa_names(stored: Mapping[str, Sequence[int]]) -> MedusaNaming:
    """Return Medusa's own names of a checkpoint's tensors; ``stored`` maps their names to shapes.

    Raises UserError for vLLM's shortened vocabulary: its heads give no probability to other tokens.
    """
    marked = {n: n.partition(".")[2] for n in stored if n.startswith(MODEL_WITH_HEADS)}
    known = marked or {name: name for name in stored}
    names: dict[str, str] = {}
    told = [f"{len(stored) - len(known)} tensors of the model itself: left out"] * (
        len(known) < len(stored)
    )
    vllm = any(_VLLM_BLOCK.fullmatch(own) for own in known.values())
    lasts: dict[int, str] = {}
    for name, own in known.items():
        block, last = _VLLM_BLOCK.fullmatch(own), _VLLM_LAST.fullmatch(own)
        if vllm and block:
            own = f"{int(block[1])}.{int(block[2])}.linear.{block[3]}"
        elif vllm and last:
            lasts[int(last[1])] = name
            continue
        elif vllm and own in ("lm_head.weight", "token_map"):
            continue
        names[own] = name
    places = [m for own in names if (m := _MEDUSA.fullmatch(own))]
    heads = 1 + max((int(m[1]) for m in places), default=-1)
    blocks = 1 + max((int(m[2]) for m in places if m[3]), default=-1)
    if vllm:
        own_names = {own: name for name, own in known.items()}
        shared = own_names.get("lm_head.weight")
        if shared is None and set(lasts) == {0} and heads > 1:  # the target's, stored once
            shared = lasts.pop(0)
        for head in range(heads):
            if (matrix := lasts.pop(head, shared)) is not None:
                names[f"{head}.{blocks}.weight"] = matrix
        names |= {f"lm_heads.{head}.weight": name for head, name in lasts.items()}
        told.append("vLLM's names: blocks.i.layers.j and lm_heads.i renamed")
        if "token_map" in own_names:
            _refuse_short(stored, names.get(f"0.{blocks}.weight"), own_names["token_map"])
            told.append("token_map: left out, as the heads have rows for every token")
    return MedusaNaming(names, told, heads, blocks, vllm)


def _refuse_short(stored: Mapping[str, Sequence[int]], last: str | None, kept: str) -> None:
    rows = 0 if last is None else next(iter(stored[last]), 0)
    if rows <= next(iter(stored[kept]), 0):
        raise UserError(
            "its token_map limits the heads to some tokens, which is not supported: use a"
            " head with the whole vocabulary"
        )


def is_medusa(stored: Mapping[str, Sequence[int]]) -> bool:
    """Return whether tensors of these names are Medusa heads'."""
    found = [n.partition(".")[2] if n.startswith(MODEL_WITH_HEADS) else n for n in stored]
    return any(_VLLM_BLOCK.fullmatch(n) or ((m := _MEDUSA.fullmatch(n)) and m[3]) for n in found)


def _told_left(names: Sequence[str]) -> list[str]:
    shown = ", ".join(ascii(name[:64])[1:-1] for name in names[:3])
    more = f" and {len(names) - 3} more" * (len(names) > 3)
    return [f"left out: {shown}{more}"] if names else []
