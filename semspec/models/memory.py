"""Place models on GPUs.

Nothing here loads a model or touches a GPU: ``models.machine`` says what GPUs there are, ``models.sizes`` what models
need, and ``place`` does the arithmetic. The names of both modules can be imported from here too.

    placement = place({"target": size_of(model), "draft": size_of(draft)}, visible_gpus(), tokens=4096)
    placement["target"].gpus, placement["target"].share

SGLang gives a server's weights and KV cache one share of the memory that is free when the server starts
(``--mem-fraction-static``); the rest of that memory has to hold everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from semspec.errors import UserError
from semspec.models.machine import (
    GIB,
    NONE,
    VISIBLE,
    DriverError,
    Gpu,
    available,
    gib,
    machine_memory,
    shown,
    visible_gpus,
)  # fmt: skip
from semspec.models.sizes import (
    HALF,
    PROMPT,
    ModelSize,
    held,
    size_from,
    size_of,
    stored_bytes,
    tokens_for,
)  # fmt: skip
from semspec.types import Role

__all__ = [
    "GIB", "HALF", "NONE", "PROMPT", "VISIBLE", "DriverError", "Gpu", "ModelSize", "Place", "available", "check_device",
    "gib", "held", "machine_memory", "needed", "place", "reserved", "shown", "size_from", "size_of", "stored_bytes",
    "tokens_for", "visible_gpus",
]  # fmt: skip

# What a server needs besides weights and KV cache. SGLang's own rule of thumb is half a GiB plus 1.5 MiB for every
# token in a forward pass; the other half GiB is for CUDA's context.
FIXED = 1 * GIB
FOR_A_TOKEN = 3 * (1 << 19)
CHUNKS = (2048, 1024)  # --chunked-prefill-size: the first with which everything fits
RANKS = (1, 2, 4, 8)  # --tp-size: GPUs over which a model may be split
REPLICA = "target-replica-"  # prefix of the names of the target's further replicas
SMALLER = "choose smaller or quantised models (AWQ, GPTQ, FP8)"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one model's server runs, and what it may use there."""

    gpus: tuple[int, ...]  # nvidia-smi's indices
    share: float  # of the memory that is free when it starts: --mem-fraction-static
    tokens: int  # capacity of its KV cache
    chunk: int  # --chunked-prefill-size
    shared: bool  # another server runs on one of its GPUs

    @property
    def ranks(self) -> int:
        """GPUs over which the model is split: --tp-size."""
        return len(self.gpus)


def place(
    sizes: Mapping[Role, ModelSize],
    gpus: Sequence[Gpu],
    tokens: int,
    fixed: Mapping[Role, Sequence[int]] | None = None,
) -> dict[Role, Place]:
    """Place models on GPUs so that each has room for its weights and a KV cache of at least ``tokens``.

    The target comes first and gets as few GPUs as it needs; each of its replicas (``REPLICA``) gets as many of its own.
    Other models get one GPU each, their own if one is left. ``fixed`` gives some models' GPUs by index. Raise UserError,
    with a remedy, if they do not fit.
    """
    assert gpus and "target" in sizes
    fixed = dict(fixed or {})
    known = {gpu.index for gpu in gpus}
    for role, chosen in fixed.items():
        if strange := [index for index in chosen if index not in known]:
            there = ", ".join(map(str, sorted(known)))
            raise UserError(
                f"{role}_gpu={strange[0]}: this machine has no such GPU; it has {there}"
            )
    for devices in _layouts(sizes, gpus, fixed):
        for chunk in CHUNKS:
            placed = _fill(sizes, gpus, devices, chunk)
            if min(one.tokens for one in placed.values()) >= tokens:
                return placed
    raise UserError(_too_small(sizes, gpus, tokens, fixed))


def _layouts(
    sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], fixed: Mapping[Role, Sequence[int]]
) -> list[dict[Role, tuple[int, ...]]]:
    """Return all assignments of GPUs to models that are worth trying, the best first."""
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
    """Divide the memory that weights leave among KV caches, with equal tokens for all models of a GPU.

    Servers start in the order of ``sizes``; each one's share is of the memory that those before it have left.
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
        rounded = int(share * 1000) / 1000  # round down: the rest is reserve
        placed[role] = Place(devices[role], rounded, room[role], chunk, shared)
        for index in devices[role]:
            left[index] -= static + reserve
    return placed


def reserved(chunk: int) -> int:
    """Return the bytes that one server needs on each GPU besides weights and KV cache."""
    return FIXED + chunk * FOR_A_TOKEN


def _too_small(
    sizes: Mapping[Role, ModelSize],
    gpus: Sequence[Gpu],
    tokens: int,
    fixed: Mapping[Role, Sequence[int]],
) -> str:
    """Say in one line what is needed, what is available, and what would help."""
    here = f"{len(gpus)} GPUs" if len(gpus) > 1 else "1 GPU"
    free = " and ".join(sorted({gib(gpu.free) for gpu in gpus}))
    each = f"{free} free each" if len(gpus) > 1 else f"{free} free"
    ways = []
    if longest := _longest(sizes, gpus, fixed):
        ways.append(f"give max_new_tokens={longest} or less")
    enough = None if fixed else _enough_gpus(sizes, gpus, tokens)
    if fixed:
        ways.append("choose other GPUs")
    if enough:
        ways.append(f"use {enough} such GPUs")
    if any(role.startswith(REPLICA) for role in sizes):
        ways.append("start fewer replicas")
    return (
        f"{_needs(sizes, tokens, len(sizes))}, but this machine has {here} with {each}:"
        f" {', or '.join([*ways, SMALLER])}"
    )


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
    """Raise UserError, with a remedy, if models do not fit on the one device of engine=hf."""
    if needed(sizes, tokens, servers=1) > free:
        raise UserError(
            f"{_needs(sizes, tokens, servers=1)}, but engine=hf uses one device, and"
            f" {device} has {gib(free)} free: use engine=sglang, which splits a model over"
            f" several GPUs, or {SMALLER}"
        )


def _longest(
    sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], fixed: Mapping[Role, Sequence[int]]
) -> int:
    """Return the largest max_new_tokens that fits, in steps of 256; 0 if none does."""
    room = [
        min(one.tokens for one in _fill(sizes, gpus, devices, CHUNKS[-1]).values())
        for devices in _layouts(sizes, gpus, fixed)
    ]
    most = max(room, default=0) - PROMPT
    return most // 256 * 256 if most >= 256 else 0


def _enough_gpus(sizes: Mapping[Role, ModelSize], gpus: Sequence[Gpu], tokens: int) -> int | None:
    """Return how many GPUs like the smallest one here would suffice; None if no number does."""
    smallest = min(gpus, key=lambda gpu: gpu.free)
    servers = sum(role == "target" or role.startswith(REPLICA) for role in sizes)
    for count in range(len(gpus) + 1, RANKS[-1] * servers + len(sizes) - servers + 1):
        many = [replace(smallest, index=index) for index in range(count)]
        for devices in _layouts(sizes, many, {}):
            placed = _fill(sizes, many, devices, CHUNKS[-1])
            if min(one.tokens for one in placed.values()) >= tokens:
                return count
    return None
