"""Generate one token per pass, all sessions in lockstep; a finished job leaves the batch.

Jobs that only score are done after the first pass but get their answers with the batch. If there are such jobs,
jobs that generate therefore stop after a few tokens, where allowed (``Generate.gives_way``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from semspec.decoding.sampling import draw, probabilities
from semspec.engines._base import take
from semspec.engines._lean.cache import Cache
from semspec.engines._lean.jobs import Job
from semspec.engines._lean.layout import groups_of, place
from semspec.engines._lean.model import Group, Model
from semspec.engines._lean.step import Step
from semspec.types import What

FEW = 4  # tokens written while others wait; giving way after each would cost more than it saves


class Writer:
    """Generates for one job: draws tokens, feeds the boundary, and decides when the job is done."""

    def __init__(self, job: Job, stop_ids: frozenset[int], waited_for: bool) -> None:
        ask = job.query.generate
        assert ask is not None
        self.job, self.ask, self.stop_ids = job, ask, stop_ids
        self.gives_way = waited_for and ask.gives_way
        self.limit = min(ask.limit, job.room)
        self.keeps_rows = any(read.what is What.PROBS for read in job.query.reads)
        self.logits = job.logits
        self.closes = False  # True: the token fed next is the last of its unit
        if self.limit < 1:
            job.answer.finish = "limit"

    @property
    def done(self) -> bool:
        return self.job.answer.finish != "scored"

    def write(self, probs: Tensor | None) -> bool:
        """Draw a token from ``probs`` (None: the most probable) and return whether to feed it."""
        job, answer = self.job, self.job.answer
        assert self.logits is not None
        if probs is None:
            token = int(self.logits.argmax())
        else:
            token = draw(probs, job.query.rng.random())
            if self.keeps_rows:
                job.reader.logits.drawn.append(probs)
        end = take(token, answer, self.ask, self.limit, self.stop_ids)
        if self.gives_way and not self.done and len(answer.tokens) >= FEW:
            answer.finish = "paused"
        self.closes = end == 0
        if end == -1:  # the tokens pooled so far are the whole unit
            job.reader.unit(len(answer.tokens) - 1)
        # pooled states include the last token, unless it only revealed the end of the last unit
        pooled = bool(job.reader.pools) and not (answer.finish == "units" and end == -1)
        return not self.done or pooled

    def fed(self, states: Mapping[int, Tensor], row: int) -> None:
        """Record that the last token was fed, with the states [batch, width] of all tapped layers, and its row there."""
        job = self.job
        job.session.fed(job.answer.tokens[-1:])
        job.answer.fed += 1
        if job.reader.taps:
            job.reader.token(states, row)
        if self.closes:
            job.reader.unit(len(job.answer.tokens))


def generate(
    jobs: Sequence[Job],
    model: Model,
    step: Step | None,
    cache: Cache,
    stop_ids: frozenset[int],
    waited_for: bool = False,
) -> None:
    """Generate for jobs whose prefix has been fed, until each is done.

    ``waited_for``: other jobs of the batch are done already, so jobs that may give way do so after a few tokens.
    """
    live = [
        writer for writer in (Writer(job, stop_ids, waited_for) for job in jobs) if not writer.done
    ]
    batch, groups = list[Writer](), list[int]()
    while live:
        rows = _rows(live)
        feeding = [writer for writer, row in zip(live, rows, strict=True) if writer.write(row)]
        if len(feeding) != len(batch):
            cache.arrange([writer.job.session for writer in feeding])
            batch = feeding = sorted(feeding, key=lambda writer: writer.job.session.slot)
            groups = groups_of([writer.job for writer in batch], [1] * len(batch), model)
        if feeding:
            cache.reserve(max(len(writer.job.session.tokens) for writer in feeding) + 1)
            _feed(batch, groups, model, step, cache)
        live = [writer for writer in batch if not writer.done]


def _rows(live: Sequence[Writer]) -> list[Tensor | None]:
    """Return the probabilities that each writer draws from; None: it takes the most probable token."""
    samplings = [writer.job.query.sampling for writer in live]
    if len(live) == 1 and live[0].logits is not None:
        return [None if samplings[0].greedy else probabilities(live[0].logits, samplings[0])]
    rows: list[Tensor | None] = [None] * len(live)
    for sampling in {one for one in samplings if not one.greedy}:
        alike = [i for i, one in enumerate(samplings) if one == sampling]
        logits = [row for i in alike if (row := live[i].logits) is not None]
        assert len(logits) == len(alike), "each job was fed before it draws"
        for i, row in zip(alike, probabilities(torch.stack(logits), sampling), strict=True):
            rows[i] = row
    return rows


def _feed(
    batch: Sequence[Writer],
    groups: Sequence[int],
    model: Model,
    step: Step | None,
    cache: Cache,
) -> None:
    jobs = [writer.job for writer in batch]
    tokens = [job.answer.tokens[-1] for job in jobs]
    starts = [len(job.session.tokens) for job in jobs]
    attended = {layer for job in jobs for layer in job.reader.attention}
    taps = set().union(*(job.reader.taps for job in jobs))
    states: dict[int, Tensor] = {}

    def read_tap(layer: int, x: Tensor) -> None:
        if layer in taps:
            states[layer] = x

    tap = read_tap if taps else None
    if step and len(jobs) == 1 and not attended:
        final = step.one(tokens[0], starts[0], jobs[0].session.slot, cache, tap)
    else:

        def attention_tap(layer: int, group: Group, weights: Tensor) -> None:
            for (job, start), own in zip(group.members(parts), weights, strict=True):
                job.reader.weights(layer, own[:, : start + 1], start)

        parts = list(zip(jobs, starts, strict=True))
        new = torch.tensor(tokens, device=model.device)
        at = place(jobs, [1] * len(jobs), model, cache, groups)
        final = model.forward(new, at, cache, tap, attention_tap, attended)
    logits = model.logits(final)
    for b, writer in enumerate(batch):
        writer.fed(states, b)
        if not writer.done:
            writer.logits = logits[b]  # the next token is drawn from these
            writer.job.reader.logits.add(logits[b : b + 1])
