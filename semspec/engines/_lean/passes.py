"""Feed a batch of jobs the tokens that their sessions lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from semspec.engines._lean.cache import Cache
from semspec.engines._lean.jobs import Job
from semspec.engines._lean.layout import place, visibility_mask
from semspec.engines._lean.model import Group, Model, Tap
from semspec.engines._lean.step import FEW, Step

# The most numbers held at a time, for the states of a pass that are kept for reading and for logits.
AT_ONCE = 1 << 22


def feed(jobs: Sequence[Job], model: Model, step: Step | None, cache: Cache, chunk: int) -> None:
    """Feed every job's missing tokens, at most ``chunk`` per pass, and collect what the queries read."""
    jobs = [job for job in jobs if job.todo]
    if not jobs:
        return
    cache.reserve(max(len(job.session.tokens) + len(job.todo) for job in jobs))
    cache.arrange([job.session for job in jobs])
    jobs.sort(key=lambda job: job.session.slot)
    for batch, counts in _batches(jobs, chunk):
        _pass(batch, counts, model, step, cache)


def _batches(jobs: Sequence[Job], chunk: int) -> Iterator[tuple[list[Job], list[int]]]:
    """Yield the jobs of each pass and how many tokens of each it takes: jobs in order, ``chunk`` tokens in all.

    With a few tokens of every job in each pass, attention would read all keys and values every time.
    """
    batch, counts = list[Job](), list[int]()
    for job in jobs:
        left = len(job.todo)
        while left:
            count = min(left, chunk - sum(counts))
            batch.append(job)
            counts.append(count)
            left -= count
            if sum(counts) == chunk:
                yield batch, counts
                batch, counts = [], []
    if batch:
        yield batch, counts


def _feed_few(job: Job, count: int, step: Step, cache: Cache, tap: Tap | None) -> Tensor:
    """Feed a job's next few tokens through ``Step``."""
    start, slot = len(job.session.tokens), job.session.slot
    if count == 1 and not job.has_nodes(start + 1):
        one = None if tap is None else lambda layer, x: tap(layer, x[None])
        return step.one(job.todo[0], start, slot, cache, one)
    positions, seen = (
        job.positions(start, count),
        visibility_mask(job, start, start + count, step.group),
    )
    return step.few(job.todo[:count], positions, seen, start, slot, cache, tap)


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

    # a short pass keeps the states of all layers and reads them at once, which costs less than layer by layer
    read = {layer for job, *_ in tapped for layer in job.reader.taps}
    together = len(read) * len(ids) * model.spec.width <= AT_ONCE
    held: dict[int, Tensor] = {}

    def read_tap(layer: int, x: Tensor) -> None:
        if layer in read and together:
            held[layer] = x
        elif layer in read:
            read_states((layer,), x[None])

    def attention_tap(layer: int, group: Group, weights: Tensor) -> None:
        for (job, start, count, _), own in zip(group.members(parts), weights, strict=True):
            job.reader.weights(layer, own[:count, : start + count], start)

    tap = read_tap if tapped else None
    if step and len(jobs) == 1 and counts[0] <= FEW and not attended:
        final = _feed_few(jobs[0], counts[0], step, cache, tap)
    else:
        new, at = torch.tensor(ids, device=model.device), place(jobs, counts, model, cache)
        final = model.forward(new, at, cache, tap, attention_tap, attended)
    if held:
        read_states(tuple(held), torch.stack(list(held.values())))
    wanted = [
        slice(at + max(job.reader.logit_row - start, 0), at + n) for job, start, n, at in parts
    ]
    for (job, _, count, _), logits in zip(parts, _logits(final, wanted, model), strict=True):
        tokens, job.todo = job.todo[:count], job.todo[count:]
        job.session.fed(tokens)
        job.answer.fed += count
        if len(logits):
            job.reader.logits.add(logits)
            job.logits = logits[-1]
        if job.query.parents is not None and len(job.session.tokens) > job.context:
            job.session.grown(job.context, job.query.parents)


def _logits(final: Tensor, wanted: Sequence[slice], model: Model) -> Sequence[Tensor]:
    """Return the logits of each job's rows: from one product, or job by job if all at once would take too much memory."""
    rows = [final[own] for own in wanted]
    counts = [len(own) for own in rows]
    if sum(counts) * model.spec.vocabulary > AT_ONCE:
        return [model.logits(own) for own in rows]
    logits, ends = model.logits(torch.cat(rows)), list(accumulate(counts))
    return [logits[end - count : end] for count, end in zip(counts, ends, strict=True)]
