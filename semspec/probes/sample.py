"""Stage 2: next steps of every context, by the model itself and by the other one.

The model that is probed continues each context ``samples`` times (SemanticSpec 3.2.1, step 1); its
states over each step, pooled inside the pass, are the features. A rule asks a probe about steps
that *the draft* wrote, and these may have probability 0, which own samples never show: so the
other model writes steps at the same contexts, and the probed one reads them.

Contexts only grow: a chain keeps a few sessions alive, and each cut feeds one step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semspec.probes.contexts import Chain, Pair
from semspec.probes.settings import ProbeConfig
from semspec.probes.shards import (
    GroupWriter,
    Sample,
    check_room,
    gigabytes,
    is_done,
    state_bytes,
)
from semspec.types import Answer, Context, Generate, Query, Read, What

Place = tuple[Chain, int]  # a chain, and how many of its steps the context holds
FOLDER = "samples"
LOGPROBS = Read(What.LOGPROBS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much there is to do, told before it begins."""

    contexts: int
    own: int  # samples of the model itself in a context
    kept: int  # of these with states
    drafted: int  # steps of the other model in a context
    poolings: int
    layers: int
    width: int

    @property
    def rows(self) -> int:
        return self.contexts * (self.kept + self.drafted)

    @property
    def bytes(self) -> int:
        return state_bytes(self.rows, self.poolings, self.layers, self.width)

    def line(self, free: str) -> str:
        written = f" + {self.drafted} by the other model" if self.drafted else ""
        return (
            f"{self.contexts} contexts x ({self.own} samples{written}); states kept: {self.rows:,}"
            f" rows x {self.poolings} pools x {self.layers + 1} layers x {self.width} x 2 bytes ="
            f" {gigabytes(self.bytes)} ({free} free)"
        )


def plan(config: ProbeConfig, cuts: dict[str, list[int]], layers: int, width: int) -> Plan:
    return Plan(
        contexts=sum(len(c) for c in cuts.values()),
        own=config.samples,
        kept=min(config.keep or config.samples, config.samples) if config.pooling else 0,
        drafted=config.drafted if config.both_write else 0,
        poolings=len(config.pooling),
        layers=layers,
        width=width,
    )


def sample(
    config: ProbeConfig,
    pair: Pair,
    chains: Sequence[Chain],
    cuts: dict[str, list[int]],
    planned: Plan,
    folder: Path,
    tell: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Samples every context, a group of chains at a time; ``tell`` hears of each context."""
    into = folder / FOLDER
    into.mkdir(exist_ok=True)
    say(planned.line(check_room(into, planned.bytes)))
    together = max(1, config.batch // config.samples)
    for number, start in enumerate(range(0, len(chains), together)):
        group = chains[start : start + together]
        if is_done(into, number):
            tell(sum(len(cuts[chain.id]) for chain in group))
            continue
        writer = GroupWriter(into, number)
        _Group(config, pair, group, cuts, planned, writer, tell).run()
        writer.commit()


class _Group:
    """Chains that are sampled together."""

    def __init__(
        self,
        config: ProbeConfig,
        pair: Pair,
        chains: Sequence[Chain],
        cuts: dict[str, list[int]],
        planned: Plan,
        writer: GroupWriter,
        tell: Callable[[int], None],
    ) -> None:
        self.config, self.pair, self.chains, self.cuts = config, pair, chains, cuts
        self.plan, self.writer, self.tell = planned, writer, tell
        lanes = min(config.samples, config.batch)
        self.lanes = {c.id: [pair.context(c.ids) for _ in range(lanes)] for c in chains}
        self.pools = {p: Read(What.POOLED, reduce=p) for p in config.pooling}  # type: ignore[arg-type]

    def run(self) -> None:
        try:
            # each chain's first chosen cut, then each one's second: batches stay full
            for turn in range(max(len(self.cuts[c.id]) for c in self.chains)):
                live = [
                    (chain, self.cuts[chain.id][turn])
                    for chain in self.chains
                    if turn < len(self.cuts[chain.id])
                ]
                for chain, cut in live:
                    before = self.cuts[chain.id][turn - 1] if turn else 0
                    new = [token for step in chain.steps[before:cut] for token in step]
                    for context in self.lanes[chain.id]:
                        context.extend(new)
                found = self._own(live)
                if self.plan.drafted:
                    found += self._other(live)
                found.sort(key=lambda f: (f[0].chain, f[0].writer != "own", f[0].number))
                for one, states in found:
                    self.writer.add(one, states)
                self.tell(len(live))
        finally:
            for contexts in self.lanes.values():
                for context in contexts:
                    self.pair.forget(context)

    def _own(self, live: Sequence[Place]) -> list[tuple[Sample, Tensor | None]]:
        """The model's own next steps, their states read while they are written."""
        asked, queries = [], []
        for chain, cut in live:
            for number in range(self.plan.own):
                kept = number < self.plan.kept
                reads = (LOGPROBS, *self.pools.values()) if kept else (LOGPROBS,)
                asked.append((chain, cut, number, kept))
                queries.append(self._write(chain, cut, "own", number, reads))
        found: list[tuple[Sample, Tensor | None]] = []
        for (chain, cut, number, kept), answer in zip(
            asked, self.pair.engine.answer(queries), strict=True
        ):
            step = _step(answer)
            logprobs = answer[LOGPROBS][: len(step)]
            states = torch.stack([answer[r][0] for r in self.pools.values()]) if kept else None
            found.append((self._sample(chain, cut, "own", number, step, logprobs), states))
        return found

    def _other(self, live: Sequence[Place]) -> list[tuple[Sample, Tensor | None]]:
        """The other model's next steps, read by this one as a rule would."""
        asked = [(chain, cut, n) for chain, cut in live for n in range(self.plan.drafted)]
        writing = [self._write(chain, cut, "other", number) for chain, cut, number in asked]
        steps = [_step(answer) for answer in self.pair.other_engine.answer(writing)]
        queries, reads = [], []
        for (chain, cut, number), step in zip(asked, steps, strict=True):
            spans = ((0, len(step)),)
            pools = [Read(What.POOLED, spans=spans, reduce=r.reduce) for r in self.pools.values()]
            reads.append(pools)
            query = self._query(chain, cut, "other", number)
            query.tokens, query.reads = step, (LOGPROBS, *pools)
            queries.append(query)
        found: list[tuple[Sample, Tensor | None]] = []
        for (chain, cut, number), step, pools, answer in zip(
            asked, steps, reads, self.pair.engine.answer(queries), strict=True
        ):
            states = torch.stack([answer[r][0] for r in pools]) if pools else None
            made = self._sample(chain, cut, "other", number, step, answer[LOGPROBS])
            found.append((made, states))
        return found

    def _query(self, chain: Chain, cut: int, writer: str, number: int) -> Query:
        lanes = self.lanes[chain.id]
        context: Context = lanes[number % len(lanes)]  # more samples than lanes: in turns
        # its own random numbers, whatever else is sampled and in whatever order
        rng = random.Random(f"{self.config.seed} {chain.id} {cut} {writer} {number}")
        return Query(self.pair.role, context, self.config.sampling, rng)

    def _write(
        self, chain: Chain, cut: int, writer: str, number: int, reads: tuple[Read, ...] = ()
    ) -> Query:
        query = self._query(chain, cut, writer, number)
        boundary = self.pair.solver.kit(chain.id, chain.prompt, "plain").boundary()
        query.generate = Generate(self.config.longest_unit, boundary, 1)
        query.reads, query.purpose = reads, "write"
        if writer == "other":
            query.model = self.pair.other
        return query

    def _sample(
        self, chain: Chain, cut: int, writer: str, number: int, step: list[int], logprobs: Tensor
    ) -> Sample:
        return Sample(
            chain.id,
            chain.domain,
            cut,
            writer,
            number,
            self.pair.readable(step),
            step,
            [round(x, 4) for x in logprobs.tolist()],
        )


def _step(answer: Answer) -> list[int]:
    """The unit that was generated, without a token that only revealed its end."""
    return answer.tokens[: answer.unit_ends()[0]]
