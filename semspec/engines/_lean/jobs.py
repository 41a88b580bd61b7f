"""One query in progress, and the passes that feed a batch of jobs their missing tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semspec.decoding.trim import depths
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model, Place, Tap
from semspec.engines._lean.reader import Reader
from semspec.engines._lean.session import Session
from semspec.engines._lean.step import FEW, Step
from semspec.errors import UserError
from semspec.types import Answer, Query

TOGETHER = 1 << 22  # numbers: the most states of a pass that are held at a time for reading


class Job:
    def __init__(self, query: Query, session: Session, model: Model) -> None:
        self.query, self.session, self.answer = query, session, Answer()
        self.context = len(query.context)
        self.total = self.context + len(query.tokens)
        self.depths = None if query.parents is None else depths(query.parents)
        self.reader = Reader(query, self.answer, model.spec, model.weights.embed)
        if query.passes:
            self._check_room(model.spec.context_limit)
        self.todo: list[int] = []
        self.logits: Tensor | None = None  # [vocabulary] to draw the next token from

    def _check_room(self, limit: int) -> None:
        deepest = self.context + (max(self.depths) if self.depths else len(self.query.tokens))
        ask = self.query.generate
        if not self.context:
            raise UserError("an empty context: a prompt needs at least one token")
        if ask and self.query.parents is not None:
            raise UserError("a query can score a tree or generate, not both")
        if deepest + (ask is not None) > limit:
            raise UserError(
                f"{deepest} tokens do not fit the context limit of {limit}: "
                "shorten the prompt or the budget, or raise max_context if the model allows"
            )
        self.room = limit - deepest  # tokens that can be generated at most

    def begin(self, cache: Cache) -> None:
        """Keep the cached part of the prefix and list the tokens that must be fed."""
        query, session = self.query, self.session
        if query.parents is None:
            kept = session.match(query.context, query.tokens, cache)
        else:
            kept = session.match_tree(query.context, query.tokens, query.parents, cache)
        kept = min(kept, self.reader.needed_from)
        session.crop(kept)
        self.answer.cached = kept
        self.todo = query.context.tokens[kept:]
        self.todo.extend(query.tokens[max(kept - self.context, 0) :])

    def has_nodes(self, end: int) -> bool:
        """Whether nodes of a tree are among the tokens before index ``end``."""
        return self.query.parents is not None and end > self.context

    def positions(self, start: int, count: int) -> list[int]:
        """Return the positions of the tokens with these indices: a node is at root + depth."""
        if self.depths is None:
            return list(range(start, start + count))
        root, indices = self.context - 1, range(start, start + count)
        return [i if i <= root else root + self.depths[i - self.context] for i in indices]


def _strangers(parents: Sequence[int], first: int) -> NDArray[np.bool_]:
    """Return [nodes - first, nodes]: node i, of those from ``first`` on, must not see node j, no ancestor of its own."""
    strangers: list[int] = []  # of each node as bits of a number
    everybody, count = (1 << len(parents)) - 1, len(parents)
    for node, parent in enumerate(parents):
        above = strangers[parent] if parent >= 0 else everybody
        strangers.append(above & ~(1 << node))
    size = (count + 7) // 8
    packed = b"".join(bits.to_bytes(size, "little") for bits in strangers[first:])
    rows = np.frombuffer(packed, np.uint8).reshape(-1, size)
    return np.unpackbits(rows, axis=1, count=count, bitorder="little").view(np.bool_)


def _hidden(job: Job, start: int, end: int, times: int = 1) -> Tensor:
    """Return [end - start, end]: 0 for each cached row that a new token of this job sees, else -inf.

    A token sees itself and those before it; a node of a tree, of the nodes its ancestors alone. ``times``: each row so often,
    one after the other.
    """
    root = job.context
    first = max(root, start) if job.has_nodes(end) else end  # of the nodes in this pass
    base = min(start, root) if first < end else start  # all see the rows before
    unseen = np.zeros((end - start, end - base), np.bool_)
    if start < first:
        unseen[: first - start] = ~np.tri(first - start, end - base, start - base, dtype=np.bool_)
    if first < end:
        parents = (job.query.parents or ())[: end - root]
        unseen[first - start :, root - base :] = _strangers(parents, first - root)
    # added to scores as it is: attention would convert a bool mask anew in every layer
    mask = np.zeros((times * (end - start), end), np.float32)
    mask[:, base:][unseen.repeat(times, 0) if times > 1 else unseen] = -np.inf
    return torch.from_numpy(mask)


def _mask(jobs: Sequence[Job], starts: Sequence[int], ends: Sequence[int]) -> Tensor | None:
    """Return [batch, 1, longest, visible]: 0 for each cached row a new token sees, else -inf."""
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    trees = any(job.has_nodes(end) for job, end in zip(jobs, ends, strict=True))
    if longest == 1 and not trees and len(set(ends)) == 1:
        return None
    mask = torch.zeros(len(jobs), longest, max(ends))
    for own, job, start, end in zip(mask, jobs, starts, ends, strict=True):
        own[: end - start, :end] = _hidden(job, start, end)
        own[: end - start, end:] = -torch.inf
    return mask[:, None]


def place(jobs: Sequence[Job], counts: Sequence[int], model: Model, cache: Cache) -> Place:
    """Lay out the next ``counts`` tokens of each job; jobs are in the order of their slots."""
    starts = [len(job.session.tokens) for job in jobs]
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    longest, batch = max(counts), len(jobs)
    positions, write, padded = list[int](), list[int](), list[int]()
    for b, (job, start, count) in enumerate(zip(jobs, starts, counts, strict=True)):
        positions += job.positions(start, count)
        row = job.session.slot * cache.positions + start
        write += range(row, row + count)
        padded += range(b * longest, b * longest + count)
    gaps = len(padded) < batch * longest
    attention = any(job.reader.attention for job in jobs)
    # from position 0 on, a fused kernel does half the work; on CUDA grouped heads are folded instead
    causal = batch == 1 and starts == [0] and jobs[0].query.parents is None and not attention
    causal = causal and model.device.type == "cpu"
    mask = None if causal else _mask(jobs, starts, ends)
    device, turns = model.device, model.turns(max(positions) + 1)
    return Place(
        slot=jobs[0].session.slot,
        batch=batch,
        longest=longest,
        visible=max(ends),
        write=torch.tensor(write, device=device),
        turns=turns[torch.tensor(positions, device=device)],
        mask=None if mask is None else mask.to(device, model.dtype),
        causal=causal,
        padded=torch.tensor(padded, device=device) if gaps else None,
    )


def feed(jobs: Sequence[Job], model: Model, step: Step | None, cache: Cache, chunk: int) -> None:
    """Feed every job's tokens to the model, ``chunk`` at a time, and read on the way."""
    jobs = [job for job in jobs if job.todo]
    if not jobs:
        return
    cache.reserve(max(len(job.session.tokens) + len(job.todo) for job in jobs))
    cache.arrange([job.session for job in jobs])
    jobs.sort(key=lambda job: job.session.slot)
    share = max(chunk // len(jobs), 1)
    while any(job.todo for job in jobs):
        _pass(jobs, [min(share, len(job.todo)) for job in jobs], model, step, cache)


def _few(job: Job, count: int, step: Step, cache: Cache, tap: Tap | None) -> Tensor:
    """Feed a job's next few tokens by the pass that is made for them."""
    start, slot = len(job.session.tokens), job.session.slot
    if count == 1 and not job.has_nodes(start + 1):
        return step.one(job.todo[0], start, slot, cache, tap)
    positions, hidden = job.positions(start, count), _hidden(job, start, start + count, step.group)
    return step.few(job.todo[:count], positions, hidden, start, slot, cache, tap)


def _pass(
    jobs: Sequence[Job], counts: Sequence[int], model: Model, step: Step | None, cache: Cache
) -> None:
    starts = [len(job.session.tokens) for job in jobs]
    ids = [token for job, n in zip(jobs, counts, strict=True) for token in job.todo[:n]]
    offsets = [sum(counts[:b]) for b in range(len(jobs))]
    parts = list(zip(jobs, starts, counts, offsets, strict=True))
    tapped = [part for part in parts if part[0].reader.taps]
    attended = {layer for job in jobs for layer in job.reader.attention}

    def read_states(layers: tuple[int, ...], x: Tensor) -> None:
        for job, start, count, offset in tapped:
            job.reader.states(layers, x[:, offset : offset + count], start)

    # the states of a short pass are read all at once: reading layer by layer would cost more
    read = {layer for job, *_ in tapped for layer in job.reader.taps}
    together = len(read) * len(ids) * model.spec.width <= TOGETHER
    held: dict[int, Tensor] = {}

    def read_tap(layer: int, x: Tensor) -> None:
        if layer in read and together:
            held[layer] = x
        elif layer in read:
            read_states((layer,), x[None])

    def attention_tap(layer: int, weights: Tensor) -> None:
        for (job, start, count, _), own in zip(parts, weights, strict=True):
            job.reader.weights(layer, own[:count, : start + count], start)

    tap = read_tap if tapped else None
    if step and len(jobs) == 1 and counts[0] <= FEW and not attended:
        final = _few(jobs[0], counts[0], step, cache, tap)
    else:
        new, at = torch.tensor(ids, device=model.device), place(jobs, counts, model, cache)
        final = model.forward(new, at, cache, tap, attention_tap, attended)
    if held:
        read_states(tuple(held), torch.stack(list(held.values())))
    for job, start, count, offset in parts:
        tokens, job.todo = job.todo[:count], job.todo[count:]
        job.session.fed(tokens)
        job.answer.fed += count
        wanted = max(job.reader.logit_row - start, 0)
        if wanted < count:
            logits = model.logits(final[offset + wanted : offset + count])
            job.reader.logits.add(logits)
            job.logits = logits[-1]
        if job.query.parents is not None and len(job.session.tokens) > job.context:
            job.session.grown(job.context, job.query.parents)
