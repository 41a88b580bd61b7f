"""Lay out a pass over new tokens of several sessions: which sessions attend together, and what each token sees.

Sessions differ in how many tokens are fed and how many are visible. One attention call over all sessions pads each to the
longest of both; separate calls pay torch's fixed cost each time. Neighbouring sessions are therefore grouped so that
padding and calls together cost least.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semspec.decoding.visibility import folded_mask
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.jobs import Job
from semspec.engines._lean.model import Group, Model, Place

# The fixed cost of one attention call, as the number of products (queries x keys x width) computed in the same time: about
# 20 microseconds on a CPU. For CUDA, which computes far more in that time, the value is a guess.
START = {"cpu": 1 << 18, "cuda": 1 << 27}
SEEN, UNSEEN = np.float32(0.0), np.float32(-np.inf)


def _not_ancestors(parents: Sequence[int], first: int) -> NDArray[np.bool_]:
    """Return [nodes - first, nodes]: True where node ``first + i`` must not see node j, as j is neither it nor its ancestor."""
    unseen_by: list[int] = []  # per node, one bit for each node it must not see
    everybody, count = (1 << len(parents)) - 1, len(parents)
    for node, parent in enumerate(parents):
        above = unseen_by[parent] if parent >= 0 else everybody
        unseen_by.append(above & ~(1 << node))
    size = (count + 7) // 8
    packed = b"".join(bits.to_bytes(size, "little") for bits in unseen_by[first:])
    rows = np.frombuffer(packed, np.uint8).reshape(-1, size)
    return np.unpackbits(rows, axis=1, count=count, bitorder="little").view(np.bool_)


def visibility_mask(job: Job, start: int, end: int, repeats: int = 1) -> Tensor:
    """Return [end - start, end]: 0 for each cached row that a new token of this job sees, else -inf.

    A token sees itself and all before it; of other tree nodes, a node sees only its ancestors. Each row is repeated
    ``repeats`` times in succession.
    """
    root = job.context
    first = max(root, start) if job.has_nodes(end) else end  # the first tree node in this pass
    base = min(start, root) if first < end else start  # every new token sees the rows before this
    unseen = np.zeros((end - start, end - base), np.bool_)
    if start < first:
        unseen[: first - start] = ~np.tri(first - start, end - base, start - base, dtype=np.bool_)
    if first < end:
        parents = (job.query.parents or ())[: end - root]
        unseen[first - start :, root - base :] = _not_ancestors(parents, first - root)
    return folded_mask(unseen, base, repeats)


def groups_of(jobs: Sequence[Job], counts: Sequence[int], model: Model) -> list[int]:
    """Return the start of each group of neighbours and the end: the cheapest split for attention over the next tokens."""
    spec = model.spec
    start, numbers = START[model.device.type], spec.heads * spec.head_dim
    ends = [len(job.session.tokens) + n for job, n in zip(jobs, counts, strict=True)]
    # for the first n sessions: the lowest cost, and where the last group begins
    best, begins = [0], [0]
    for last in range(1, len(jobs) + 1):
        longest = visible = least = begin = 0
        for first in range(last - 1, -1, -1):
            longest, visible = max(longest, counts[first]), max(visible, ends[first])
            # cost = start + sessions x visible x (longest + 1) x numbers; the 1 covers reading keys and values
            own = start + (last - first) * visible * (longest + 1) * numbers
            if first == last - 1 and _causal(jobs[first], counts[first], model):
                own = start + own // 2
            elif least and own >= least:
                break  # a longer group only costs more
            if not least or best[first] + own < least:
                least, begin = best[first] + own, first
        best.append(least)
        begins.append(begin)
    cuts = [len(jobs)]
    while cuts[-1]:
        cuts.append(begins[cuts[-1]])
    return cuts[::-1]


def _causal(job: Job, count: int, model: Model) -> bool:
    """Return whether a fused causal kernel can run, which does half the work: each token sees all before it, from position 0.

    False on CUDA, where heads that share keys are folded instead.
    """
    if job.session.tokens or count == 1 or model.device.type != "cpu":
        return False
    return job.query.parents is None and not job.reader.attention


def _mask(jobs: Sequence[Job], starts: Sequence[int], ends: Sequence[int]) -> Tensor | None:
    """Return [batch, 1, longest, visible]: 0 for each cached row that a new token sees, else -inf; None: all visible."""
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    trees = any(job.has_nodes(end) for job, end in zip(jobs, ends, strict=True))
    if longest == 1 and not trees and len(set(ends)) == 1:
        return None
    # what the padding after a session's own tokens sees does not matter
    last = np.asarray(starts)[:, None, None] + np.arange(longest)[:, None]
    mask = torch.from_numpy(np.where(np.arange(max(ends)) <= last, SEEN, UNSEEN))
    for own, job, start, end in zip(mask, jobs, starts, ends, strict=True):
        if job.has_nodes(end):
            own[: end - start, :end] = visibility_mask(job, start, end)
    return mask[:, None]


def place(
    jobs: Sequence[Job],
    counts: Sequence[int],
    model: Model,
    cache: Cache,
    groups: Sequence[int] | None = None,
) -> Place:
    """Lay out the next ``counts`` tokens of each job; jobs are in the order of their slots.

    ``groups``: the groups found earlier for the same jobs, when all had fewer tokens.
    """
    starts = [len(job.session.tokens) for job in jobs]
    positions, write, device = list[int](), list[int](), model.device
    for job, start, count in zip(jobs, starts, counts, strict=True):
        positions += job.positions(start, count)
        row = job.session.slot * cache.positions + start
        write += range(row, row + count)
    made, row = list[Group](), 0
    for first, end in pairwise(groups or groups_of(jobs, counts, model)):
        made.append(
            _group(jobs[first:end], starts[first:end], counts[first:end], first, row, model)
        )
        row = made[-1].rows.stop
    return Place(
        rows=model.rows(row),
        groups=made,
        write=torch.tensor(write, device=device),
        turns=model.turns(max(positions) + 1)[torch.tensor(positions, device=device)],
    )


def _group(
    jobs: Sequence[Job],
    starts: Sequence[int],
    counts: Sequence[int],
    first: int,
    row: int,
    model: Model,
) -> Group:
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    batch, longest, total, device = len(jobs), max(counts), sum(counts), model.device
    causal = batch == 1 and _causal(jobs[0], counts[0], model)
    mask = None if causal else _mask(jobs, starts, ends)
    padded = None
    if total < batch * longest:
        own = (b * longest + n for b, count in enumerate(counts) for n in range(count))
        padded = torch.tensor(list(own), device=device)
    return Group(
        first=first,
        slot=jobs[0].session.slot,
        batch=batch,
        longest=longest,
        visible=max(ends),
        rows=slice(row, row + total),
        mask=None if mask is None else mask.to(device, model.dtype),
        causal=causal,
        padded=padded,
    )
