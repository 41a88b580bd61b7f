"""Stage 2: next steps of every context, by the model itself and by the other one.

The model that is probed continues each context ``samples`` times (SemanticSpec 3.2.1, step 1); its
states over each step, pooled inside the pass, are the features. A rule asks a probe about steps
that *the draft* wrote, and these may have probability 0, which own samples never show: so the
other model writes steps at the same contexts, and the probed one reads them.

Contexts only grow: a chain keeps its session alive, and the next cut feeds what is new.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

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
Asked = tuple[Chain, int, int]  # and which sample of this context
FOLDER = "samples"
UNIT = 4000  # samples that are committed together, about: what a kill costs at most
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
    def samples(self) -> int:
        return self.contexts * (self.own + self.drafted)

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
    """Samples every context that an earlier start has not; ``tell`` hears of each sample."""
    into = folder / FOLDER
    into.mkdir(exist_ok=True)
    say(planned.line(check_room(into, planned.bytes)))
    for number, places in enumerate(units(config, chains, cuts)):
        if is_done(into, number):
            tell(len(places) * (planned.own + planned.drafted))
            continue
        writer = GroupWriter(into, number)
        _Unit(config, pair, places, planned, writer, tell).run()
        writer.commit()


def units(
    config: ProbeConfig, chains: Sequence[Chain], cuts: dict[str, list[int]]
) -> Iterator[list[Place]]:
    """The contexts in the order of sampling, cut into what is committed together.

    As many chains as a batch holds go along together, each one's first chosen cut, then each one's
    second: batches stay full. A unit begins with fresh sessions, so that nothing in it depends on
    what was done before it, and a resumed run repeats the very same passes.
    """
    chosen = [chain for chain in chains if cuts[chain.id]]
    for start in range(0, len(chosen), config.batch):
        group = chosen[start : start + config.batch]
        turns = max(1, UNIT // (len(group) * config.samples))
        for turn in range(0, max(len(cuts[c.id]) for c in group), turns):
            yield [(c, cut) for c in group for cut in cuts[c.id][turn : turn + turns]]


class _Unit:
    """Contexts that are sampled together."""

    def __init__(
        self,
        config: ProbeConfig,
        pair: Pair,
        places: Sequence[Place],
        planned: Plan,
        writer: GroupWriter,
        tell: Callable[[int], None],
    ) -> None:
        self.config, self.pair, self.plan, self.tell = config, pair, planned, tell
        self.writer = writer
        self.cuts: dict[str, list[Place]] = {}
        for place in places:
            self.cuts.setdefault(place[0].id, []).append(place)
        # few chains: several sessions of each, so that a batch is full all the same
        self.lanes = max(1, min(config.samples, config.batch // len(self.cuts)))
        self.sessions = {
            name: [pair.context(own[0][0].question, own[0][0].ids) for _ in range(self.lanes)]
            for name, own in self.cuts.items()
        }
        self.pools = tuple(Read(What.POOLED, reduce=p) for p in config.pooling)  # type: ignore[arg-type]

    def run(self) -> None:
        try:
            for turn in range(max(len(own) for own in self.cuts.values())):
                live = [own[turn] for own in self.cuts.values() if turn < len(own)]
                for chain, cut in live:
                    before = self.cuts[chain.id][turn - 1][1] if turn else 0
                    new = [token for step in chain.steps[before:cut] for token in step]
                    for context in self.sessions[chain.id]:
                        context.extend(new)
                self._ask(live, self.plan.own, self._own)
                self._ask(live, self.plan.drafted, self._other)
        finally:
            for contexts in self.sessions.values():
                for context in contexts:
                    self.pair.forget(context)

    def _ask(self, live: Sequence[Place], count: int, ask: Callable[[list[Asked]], None]) -> None:
        """So many samples of each context, as many at a time as there are sessions."""
        for start in range(0, count, self.lanes):
            numbers = range(start, min(start + self.lanes, count))
            asked = [(chain, cut, number) for chain, cut in live for number in numbers]
            ask(asked)
            self.tell(len(asked))

    def _own(self, asked: list[Asked]) -> None:
        """The model's own next steps, their states read while they are written."""
        reads = [
            (LOGPROBS, *self.pools) if number < self.plan.kept else (LOGPROBS,)
            for _, _, number in asked
        ]
        queries = [self._write(one, "own", own) for one, own in zip(asked, reads, strict=True)]
        answers = self.pair.engine.answer(queries)
        for one, own, answer in zip(asked, reads, answers, strict=True):
            self._keep(one, "own", _step(answer), answer, own[1:])

    def _other(self, asked: list[Asked]) -> None:
        """The other model's next steps, read by this one as a rule would."""
        answers = self.pair.other_engine.answer([self._write(one, "other") for one in asked])
        steps = [_step(answer) for answer in answers]
        queries, reads = [], []
        for one, step in zip(asked, steps, strict=True):
            spans = ((0, len(step)),)
            reads.append([Read(What.POOLED, spans=spans, reduce=r.reduce) for r in self.pools])
            query = self._query(one, "other")
            query.tokens, query.reads = step, (LOGPROBS, *reads[-1])
            queries.append(query)
        answers = self.pair.engine.answer(queries)
        for one, step, pools, answer in zip(asked, steps, reads, answers, strict=True):
            self._keep(one, "other", step, answer, pools)

    def _query(self, one: Asked, writer: str) -> Query:
        chain, cut, number = one
        context: Context = self.sessions[chain.id][number % self.lanes]
        # its own random numbers, whatever else is sampled and in whatever order
        rng = random.Random(f"{self.config.seed} {chain.id} {cut} {writer} {number}")
        return Query(self.pair.role, context, self.config.sampling, rng)

    def _write(self, one: Asked, writer: str, reads: tuple[Read, ...] = ()) -> Query:
        query = self._query(one, writer)
        query.generate = Generate(self.config.longest_unit, self.pair.boundary(), 1)
        query.reads, query.purpose = reads, "write"
        if writer == "other":
            query.model = self.pair.other
        return query

    def _keep(
        self, one: Asked, writer: str, step: list[int], answer: Answer, pools: Sequence[Read]
    ) -> None:
        chain, cut, number = one
        logprobs = [round(x, 4) for x in answer[LOGPROBS].tolist()[: len(step)]]
        text = self.pair.readable(step)
        states = torch.stack([answer[read][0] for read in pools]) if pools else None
        self.writer.add(
            Sample(chain.id, chain.domain, cut, writer, number, text, step, logprobs), states
        )


def _step(answer: Answer) -> list[int]:
    """The unit that was generated, without a token that only revealed its end."""
    return answer.tokens[: answer.unit_ends()[0]]
