"""Which models fit on which GPUs: what is there, what the models need, and who goes where.

Nothing here loads a model or touches a GPU: ``nvidia-smi`` says what is there, a model's config.json and the
sizes of its files say what it needs, and ``place`` does the arithmetic.

    placement = place({"target": size_of(model), "draft": size_of(draft)}, visible_gpus(), tokens=4096)
    placement["target"].gpus, placement["target"].share

SGLang counts a server's weights and KV cache as one share of the memory that is free when the server starts
(``--mem-fraction-static``); what is left of it has to hold everything else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.models import hub
from semspec.models.folder import read_json
from semspec.models.intact import check_sizes
from semspec.models.location import ModelConfig, canonical_name
from semspec.types import Role

SMI = "nvidia-smi"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 1 << 30
SMI_SECONDS = 30  # a sleeping driver takes some to wake up
WIDTHS = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
HALF = 2  # bytes of a number on a GPU, in weights and KV cache
PROMPT = 2048  # tokens that are kept free for a problem's prompt
# What a server needs beside weights and KV cache: SGLang's own rule of thumb is 1.5 MiB for every token that goes
# through the model at a time, and half a GiB; the other half is CUDA's context.
FIXED = 1 * GIB
FOR_A_TOKEN = 3 * (1 << 19)
CHUNKS = (2048, 1024)  # tokens at a time (--chunked-prefill-size): the first with which all fits
RANKS = (1, 2, 4, 8)  # GPUs that one model is split over (--tp-size)
REPLICA = "target-replica-"  # how the names of the target's further replicas begin
SMALLER = "choose smaller or quantised models (AWQ, GPTQ, FP8)"
NONE = "No devices were found"
_ROW = re.compile(r"(\d+), *([^,\s]+), *(.+), *([^,]+), *([^,]+)")
_SHARD = re.compile(r".*-of-\d+\.safetensors")


class DriverError(UserError):
    """NVIDIA's driver is installed, but does not answer."""


# ---- what is there ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process may use."""

    index: int  # as nvidia-smi counts, in the order of the bus
    name: str
    total: int  # bytes
    free: int

    def __str__(self) -> str:
        return f"{self.name} ({gib(self.free)} free of {gib(self.total)})"


def gib(size: float) -> str:
    """Format bytes as GiB, with a digit behind the point where that says something."""
    return f"{size / GIB:.{0 if size >= 10 * GIB else 1}f} GiB"


def shown(size: float) -> str:
    """Format bytes as GiB, or as MiB where there is not one GiB."""
    return gib(size) if size >= GIB else f"{size / (1 << 20):.{0 if size >= 1 << 20 else 2}f} MiB"


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; none without a driver.

    Raise DriverError where the driver is installed and does not answer.
    """
    chosen = os.environ.get(VISIBLE)
    if chosen is not None and chosen.strip() in ("", "-1"):
        return []
    if shutil.which(SMI) is None:
        return []
    found = _listed(_ask_driver())
    if chosen is None:
        return list(found.values())
    kept: list[Gpu] = []
    for name in (part.strip() for part in chosen.split(",")):
        matching = [g for known, g in found.items() if _names(name, known, g)]
        if len(matching) != 1:  # CUDA, too, ignores what follows a device that is not there
            break
        kept += matching
    return kept


def _names(name: str, uuid: str, gpu: Gpu) -> bool:
    return name == str(gpu.index) or (name.startswith("GPU-") and uuid.startswith(name))


def _ask_driver() -> str:
    columns = "index,uuid,name,memory.total,memory.free"
    command = [SMI, f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        raise _silent(f"no answer in {SMI_SECONDS} s" if late else str(error)) from error
    if done.returncode:
        lines = (done.stdout + done.stderr).split("\n")
        raise _silent(next((x.strip() for x in lines if x.strip()), f"code {done.returncode}"))
    return done.stdout


def _silent(why: str) -> DriverError:
    return DriverError(
        f"NVIDIA's driver does not answer ({SMI}: {why[:200]}): mend it, or go on without a GPU by {VISIBLE}="
    )


def _listed(told: str) -> dict[str, Gpu]:
    """Read the driver's table; returns GPUs by uuid."""
    found = {}
    for line in filter(None, map(str.strip, told.splitlines())):
        if line == NONE:
            continue
        if not (row := _ROW.fullmatch(line)):
            raise _silent(line)
        index, uuid, name, total, free = row.groups()
        # [N/A] where CPU and GPU share their memory
        size = int(total) << 20 if total.isdecimal() else machine_memory()
        left = int(free) << 20 if free.isdecimal() else size
        found[uuid] = Gpu(int(index), name, size, left)
    return found


def machine_memory() -> int:
    """Return the bytes of this machine's own memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available() -> int:
    """Return the bytes of this machine's memory that new work can have without others being moved out of it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux
        return machine_memory()
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(found["MemAvailable"][0]) << 10 if "MemAvailable" in found else machine_memory()


# ---- what a model needs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The memory that a model needs on a GPU."""

    name: str
    weights: int  # bytes
    token: int  # bytes of KV cache for one token
    heads: int
    kv_heads: int
    context: int  # tokens that it was trained with

    def splits(self, ranks: int) -> bool:
        """Return whether the model can be split over so many GPUs."""
        return self.heads % ranks == 0 and (
            self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0
        )

    def part(self, ranks: int) -> ModelSize:
        """Return what one of so many GPUs holds of the model."""
        kept = min(ranks, self.kv_heads)  # a GPU holds at least one head's cache
        return replace(self, weights=-(-self.weights // ranks), token=-(-self.token // kept))


def size_of(model: ModelConfig) -> ModelSize:
    """Return the size of a model, without fetching weights from the Hub.

    Raise UserError for a model that cannot be found, or whose config.json does not describe one.
    """
    folder = model.fetch(weights=False)
    config = read_json(folder / "config.json")
    check_sizes(folder / "config.json", config)
    stored = stored_bytes(hub.sizes(model.location, model.revision))
    try:
        return size_from(canonical_name(model), config, stored)
    except (ValueError, OverflowError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(
            f"{folder / 'config.json'} does not describe a language model ({error})"
        ) from error


def stored_bytes(files: Mapping[str, int]) -> int:
    """Return the bytes of a model's weights among its files: a repository may hold them twice."""
    weights = {name: size for name, size in files.items() if name.endswith(".safetensors")}
    shards = [size for name, size in weights.items() if _SHARD.fullmatch(name)]
    if "model.safetensors.index.json" in files and shards:
        return sum(shards)
    return weights.get("model.safetensors", sum(weights.values()))


def size_from(name: str, config: Mapping[str, Any], stored: int) -> ModelSize:
    """Return the size of a model with this config.json and so many bytes of weights in its files."""
    shape = {**config, **(config.get("text_config") or {})}
    layers, heads = int(shape["num_hidden_layers"]), int(shape["num_attention_heads"])
    kv_heads = int(shape.get("num_key_value_heads") or heads)
    if shape.get("kv_lora_rank"):  # one compressed row stands for keys and values of all heads
        row, kv_heads = int(shape["kv_lora_rank"]) + int(shape.get("qk_rope_head_dim") or 0), 1
    else:
        row = 2 * kv_heads * int(shape.get("head_dim") or int(shape["hidden_size"]) // heads)
    width = WIDTHS.get(str(shape.get("dtype") or shape.get("torch_dtype")), HALF)
    quantised = bool(config.get("quantization_config"))
    weights = stored if quantised else stored * HALF // width
    trained = int(shape["max_position_embeddings"])
    return ModelSize(name, weights, layers * row * HALF, heads, kv_heads, trained)


def tokens_for(max_new_tokens: int, sizes: Mapping[Role, ModelSize]) -> int:
    """Return the tokens of the longest problem: the budget and room for a prompt, as far as models reach."""
    return min(max_new_tokens + PROMPT, *(size.context for size in sizes.values()))


def held(size: ModelSize, tokens: int, width: int = HALF) -> str:
    """Say what a model holds: its weights, and a KV cache of so many tokens; ``width`` is of a number."""
    weights, cache = (part * width // HALF for part in (size.weights, tokens * size.token))
    return f"{shown(weights)} of weights and {shown(cache)} of KV cache ({tokens:,} tokens)"


# ---- who goes where -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where one model's server runs, and what it may use there."""

    gpus: tuple[int, ...]  # as nvidia-smi counts
    share: float  # of the memory that is free when it starts: --mem-fraction-static
    tokens: int  # that its KV cache holds
    chunk: int  # --chunked-prefill-size
    shared: bool  # another server runs on one of its GPUs

    @property
    def ranks(self) -> int:
        """GPUs that the model is split over: --tp-size."""
        return len(self.gpus)


def place(
    sizes: Mapping[Role, ModelSize],
    gpus: Sequence[Gpu],
    tokens: int,
    fixed: Mapping[Role, Sequence[int]] | None = None,
) -> dict[Role, Place]:
    """Place models on GPUs so that each holds its weights and a KV cache of at least so many tokens.

    The target comes first: it gets as few GPUs as it needs, and each of its replicas (``REPLICA``) as many of its own;
    other models get one each, of their own where one is left. ``fixed`` names the GPUs (by index) of some models. Raise
    UserError, with a way out, where they do not fit.
    """
    assert gpus and "target" in sizes
    fixed = dict(fixed or {})
    known = {gpu.index for gpu in gpus}
    for role, chosen in fixed.items():
        if strange := [index for index in chosen if index not in known]:
            there = ", ".join(map(str, sorted(known)))
            raise UserError(f"{role}_gpu: there is no GPU {strange[0]} here; there is {there}")
    for devices in _layouts(sizes, gpus, fixed):
        for chunk in CHUNKS:
            placed = _fill(sizes, gpus, devices, chunk)
            if min(one.tokens for one in placed.values()) >= tokens:
                return placed
    raise UserError(_too_small(sizes, gpus, tokens, fixed))


def _layouts(
    sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], fixed: Mapping[Role, Sequence[int]]
) -> list[dict[Role, tuple[int, ...]]]:
    """Return the GPUs of each model in all ways to be tried, the best first."""
    replicas = [role for role in sizes if role.startswith(REPLICA)]
    others = [role for role in sizes if role != "target" and role not in replicas]
    ways = []
    pool = [gpu.index for gpu in gpus]
    taken = {index for role in others for index in fixed.get(role, ())}
    own = [tuple(fixed["target"])] if "target" in fixed else []
    if not own:
        order = sorted(pool, key=lambda index: index in taken)
        own = [tuple(sorted(order[:n])) for n in RANKS if n <= len(pool)]
    for target in own:
        if not sizes["target"].splits(len(target)):
            continue
        left = [index for index in pool if index not in target and index not in taken]
        if len(left) < len(target) * len(replicas):
            continue
        devices: dict[Role, tuple[int, ...]] = {"target": target}
        for role in replicas:
            devices[role], left = tuple(left[: len(target)]), left[len(target) :]
        for role in others:
            devices[role] = tuple(fixed.get(role) or (left.pop(0) if left else target[-1],))
        if all(sizes[role].splits(len(devices[role])) for role in others):
            ways.append(devices)
    return ways


def _fill(
    sizes: Mapping[Role, ModelSize],
    gpus: Sequence[Gpu],
    devices: Mapping[Role, tuple[int, ...]],
    chunk: int,
) -> dict[Role, Place]:
    """Give the memory that weights leave to KV caches, as many tokens to each model of a GPU.

    Servers start in the order of ``sizes``; each counts its share from what those before it have left.
    """
    parts = {role: size.part(len(devices[role])) for role, size in sizes.items()}
    reserve = reserved(chunk)
    room: dict[Role, int] = {}
    for gpu in gpus:
        here = [role for role in sizes if gpu.index in devices[role]]
        if not here:
            continue
        spare = gpu.free - sum(parts[role].weights + reserve for role in here)
        tokens = max(spare, 0) // max(1, sum(parts[role].token for role in here))
        room |= {role: min(tokens, room.get(role, tokens)) for role in here}
    left = {gpu.index: gpu.free for gpu in gpus}
    placed: dict[Role, Place] = {}
    for role in sizes:
        static = parts[role].weights + room[role] * parts[role].token
        smallest = min(left[index] for index in devices[role])
        share = static / smallest if smallest > 0 else 1.0
        others = [index for other in sizes if other != role for index in devices[other]]
        shared = bool(set(devices[role]) & set(others))
        rounded = int(share * 1000) / 1000  # down: what is not shared out is reserve
        placed[role] = Place(devices[role], rounded, room[role], chunk, shared)
        for index in devices[role]:
            left[index] -= static + reserve
    return placed


def reserved(chunk: int) -> int:
    """Return the bytes that one server needs on each GPU beside weights and KV cache."""
    return FIXED + chunk * FOR_A_TOKEN


def _too_small(
    sizes: Mapping[Role, ModelSize],
    gpus: Sequence[Gpu],
    tokens: int,
    fixed: Mapping[Role, Sequence[int]],
) -> str:
    """Say in one line what is needed, what is there, and what would help."""
    here = f"{len(gpus)} GPUs" if len(gpus) > 1 else "1 GPU"
    free = " and ".join(sorted({gib(gpu.free) for gpu in gpus}))
    each = f"{free} free each" if len(gpus) > 1 else f"{free} free"
    ways = []
    if longest := _longest(sizes, gpus, fixed):
        ways.append(f"give max_new_tokens={longest} or less")
    enough = None if fixed else _enough_gpus(sizes, gpus, tokens)
    if fixed:
        ways.append("give them other GPUs")
    if enough:
        ways.append(f"use {enough} such GPUs")
    if any(role.startswith(REPLICA) for role in sizes):
        ways.append("start fewer replicas")
    return f"{_needs(sizes, tokens, len(sizes))}, and here {here} with {each}: {', or '.join([*ways, SMALLER])}"


def needed(sizes: Mapping[Role, ModelSize], tokens: int, servers: int) -> int:
    """Return the bytes that models need on one GPU for problems of so many tokens."""
    held = sum(size.weights + tokens * size.token for size in sizes.values())
    return held + servers * reserved(CHUNKS[-1])


def _needs(sizes: Mapping[Role, ModelSize], tokens: int, servers: int) -> str:
    listed = [f"{size.name} ({gib(size.weights)} of weights)" for size in sizes.values()]
    verb = "need" if len(listed) > 1 else "needs"
    need = gib(needed(sizes, tokens, servers))
    return f"{' and '.join(listed)} {verb} {need} for a problem of {tokens:,} tokens"


def check_device(sizes: Mapping[Role, ModelSize], free: int, device: str, tokens: int) -> None:
    """Raise UserError, with a way out, where models do not fit on the one device of engine=hf."""
    if needed(sizes, tokens, servers=1) > free:
        raise UserError(
            f"{_needs(sizes, tokens, servers=1)}, and {device}, the one device of engine=hf, has"
            f" {gib(free)} free: use engine=sglang, which splits a model over several GPUs, or {SMALLER}"
        )


def _longest(
    sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], fixed: Mapping[Role, Sequence[int]]
) -> int:
    """Return the largest max_new_tokens that fits; 0 where none does that is worth while."""
    room = [
        min(one.tokens for one in _fill(sizes, gpus, devices, CHUNKS[-1]).values())
        for devices in _layouts(sizes, gpus, fixed)
    ]
    most = max(room, default=0) - PROMPT
    return most // 256 * 256 if most >= 256 else 0


def _enough_gpus(sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], tokens: int) -> int | None:
    """Return how many GPUs like the smallest here would do; None where no number does."""
    smallest = min(gpus, key=lambda gpu: gpu.free)
    servers = sum(role == "target" or role.startswith(REPLICA) for role in sizes)
    for count in range(len(gpus) + 1, RANKS[-1] * servers + len(sizes) - servers + 1):
        many = [replace(smallest, index=index) for index in range(count)]
        for devices in _layouts(sizes, many, {}):
            placed = _fill(sizes, many, devices, CHUNKS[-1])
            if min(one.tokens for one in placed.values()) >= tokens:
                return count
    return None
