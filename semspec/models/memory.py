"""Which models fit on which GPUs: who goes where.

Nothing here loads a model or touches a GPU: ``models.machine`` says what is there, ``models.sizes`` what the models
need, and ``place`` does the arithmetic. The names of both can be imported from here, too.

    placement = place({"target": size_of(model), "draft": size_of(draft)}, visible_gpus(), tokens=4096)
    placement["target"].gpus, placement["target"].share

SGLang counts a server's weights and KV cache as one share of the memory that is free when the server starts
(``--mem-fraction-static``); what is left of it has to hold everything else.
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

# What a server needs beside weights and KV cache: SGLang's own rule of thumb is 1.5 MiB for every token that goes
# through the model at a time, and half a GiB; the other half is CUDA's context.
FIXED = 1 * GIB
FOR_A_TOKEN = 3 * (1 << 19)
CHUNKS = (2048, 1024)  # tokens at a time (--chunked-prefill-size): the first with which all fits
RANKS = (1, 2, 4, 8)  # GPUs that one model is split over (--tp-size)
REPLICA = "target-replica-"  # how the names of the target's further replicas begin
SMALLER = "choose smaller or quantised models (AWQ, GPTQ, FP8)"


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
