"""One query in progress, and the passes that feed a batch of jobs their missing tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from semspec.decoding.trim import depths
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.model import Model, Place
from semspec.engines._lean.reader import Reader
from semspec.engines._lean.session import Session
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

    def positions(self, start: int, count: int) -> list[int]:
        """Return the positions of the tokens with these indices: a node is at root + depth."""
        if self.depths is None:
            return list(range(start, start + count))
        root, indices = self.context - 1, range(start, start + count)
        return [i if i <= root else root + self.depths[i - self.context] for i in indices]


def _ancestors(parents: Sequence[int]) -> Tensor:
    """Return [nodes, nodes] bool: node i attends to node j, itself or an ancestor."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


def _mask(jobs: Sequence[Job], starts: Sequence[int], ends: Sequence[int]) -> Tensor | None:
    """Return [batch, 1, longest, visible]: 0 for each cached row a new token sees, else -inf."""
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    trees = any(job.query.parents is not None for job in jobs)
    if longest == 1 and not trees and len(set(ends)) == 1:
        return None
    reach = torch.tensor(starts)[:, None, None] + torch.arange(longest)[None, :, None]
    mask = torch.arange(max(ends)) <= reach  # each token sees itself and those before it
    for own, job, start, end in zip(mask, jobs, starts, ends, strict=True):
        if job.query.parents is None or end <= job.context:
            continue
        first = max(job.context, start)  # index of the first node in this pass
        sees = _ancestors(job.query.parents)
        shown = sees[first - job.context : end - job.context, : end - job.context]
        own[first - start : end - start, job.context : end] = shown
    # added to scores as it is: attention would convert a bool mask anew in every layer
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)[:, None]


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


def feed(jobs: Sequence[Job], model: Model, cache: Cache, chunk: int) -> None:
    """Feed every job's tokens to the model, ``chunk`` at a time, and read on the way."""
    jobs = [job for job in jobs if job.todo]
    if not jobs:
        return
    cache.reserve(max(len(job.session.tokens) + len(job.todo) for job in jobs))
    cache.arrange([job.session for job in jobs])
    jobs.sort(key=lambda job: job.session.slot)
    share = max(chunk // len(jobs), 1)
    while any(job.todo for job in jobs):
        _pass(jobs, [min(share, len(job.todo)) for job in jobs], model, cache)


def _pass(jobs: Sequence[Job], counts: Sequence[int], model: Model, cache: Cache) -> None:
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

    def tap(layer: int, x: Tensor) -> None:
        if layer in read and together:
            held[layer] = x
        elif layer in read:
            read_states((layer,), x[None])

    def attention_tap(layer: int, weights: Tensor) -> None:
        for (job, start, count, _), own in zip(parts, weights, strict=True):
            job.reader.weights(layer, own[:count, : start + count], start)

    new, at = torch.tensor(ids, device=model.device), place(jobs, counts, model, cache)
    x = model.forward(new, at, cache, tap if tapped else None, attention_tap, attended)
    if held:
        read_states(tuple(held), torch.stack(list(held.values())))
    for job, start, count, offset in parts:
        tokens, job.todo = job.todo[:count], job.todo[count:]
        job.session.fed(tokens)
        job.answer.fed += count
        wanted = max(job.reader.logit_row - start, 0)
        if wanted < count:
            logits = model.logits(model.final(x[offset + wanted : offset + count]))
            job.reader.logits.add(logits)
            job.logits = logits[-1]
        if job.query.parents is not None and len(job.session.tokens) > job.context:
            job.session.grown(job.context, job.query.parents)
