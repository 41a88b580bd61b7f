"""Sample the next steps of contexts from models, and pass them to a writer.

Models in this process answer batches: all chains advance together, turn by turn (``InTurns``). Servers batch by
themselves: each chain advances alone, and all samples of a context are requested at once, so that the server draws
them from one cached prefix (``Freely``). The pass that reads a step also returns its pooled states.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from semspec.deferred import torch
from semspec.protocols import Plan as Steps
from semspec.training.probes.contexts import Chain, Pair
from semspec.training.probes.shards import GroupWriter, Plan, Sample
from semspec.types import LOGPROBS, Answer, Context, Generate, Query, Read, What

Place = tuple[Chain, int]  # a chain, and how many of its steps the context holds
Asked = tuple[Chain, int, int]  # the same, and which sample of this context


class _Unit(ABC):
    """A unit: contexts that are sampled and committed together."""

    def __init__(
        self,
        pair: Pair,
        places: Sequence[Place],
        planned: Plan,
        writer: GroupWriter,
        tell: Callable[[int], None],
    ) -> None:
        self.config, self.pair, self.plan, self.tell = pair.config, pair, planned, tell
        self.writer = writer
        self.cuts: dict[str, list[Place]] = {}
        for place in places:
            self.cuts.setdefault(place[0].id, []).append(place)
        self.pools = tuple(Read(What.POOLED, reduce=p) for p in pair.config.pooling)

    @abstractmethod
    def run(self) -> None:
        """Sample all contexts of the unit."""

    def _new(self, chain: Chain, turn: int) -> list[int]:
        """Return the tokens that extend the chain's context to its cut of this turn."""
        own = self.cuts[chain.id]
        before = own[turn - 1][1] if turn else 0
        return [token for step in chain.steps[before : own[turn][1]] for token in step]

    def _query(self, one: Asked, writer: str, context: Context) -> Query:
        chain, cut, number = one
        # a seed per sample, so that results do not depend on what else is sampled, or when
        rng = random.Random(f"{self.config.seed} {chain.id} {cut} {writer} {number}")
        return Query(self.pair.role, context, self.config.sampling, rng)

    def _write(self, one: Asked, writer: str, context: Context) -> Query:
        """Let a model write a next step; if the probed model writes it, read the states in the same pass."""
        query = self._query(one, writer, context)
        query.generate = Generate(self.config.longest_unit, self.pair.boundary(), 1)
        query.purpose = "write"
        if writer == "other":
            query.model, query.reads = self.pair.other, (LOGPROBS,)
        else:
            query.reads = (LOGPROBS, *self.pools) if one[2] < self.plan.kept else (LOGPROBS,)
        return query

    def _judge(self, one: Asked, context: Context, step: Sequence[int]) -> Query:
        """Let the probed model read the other model's step, as a rule would."""
        query = self._query(one, "other", context)
        spans = ((0, len(step)),)
        pools = [Read(What.POOLED, spans=spans, reduce=r.reduce) for r in self.pools]
        query.tokens, query.reads = step, (LOGPROBS, *pools)
        return query

    def _keep(
        self,
        one: Asked,
        writer: str,
        step: list[int],
        query: Query,
        answer: Answer,
        drafted: Sequence[float] = (),
    ) -> None:
        """Save a step with its log-probabilities and pooled states, if any."""
        chain, cut, number = one
        logprobs = [round(x, 4) for x in answer[LOGPROBS].tolist()[: len(step)]]
        text, pools = self.pair.readable(step), query.reads[1:]
        states = torch.stack([answer[read][0] for read in pools]) if pools else None
        made = Sample(chain.id, chain.domain, cut, writer, number, text, step, logprobs)
        if drafted:
            made = replace(made, drafted=[round(x, 4) for x in drafted])
        self.writer.add(made, states)


class InTurns(_Unit):
    """Samples in batches: first every chain's first chosen cut, then every chain's second, and so on."""

    def run(self) -> None:
        names = list(self.cuts)
        longest = max(map(self._longest, self.cuts.values())) + self.config.longest_unit
        most = self.pair.most_contexts(longest) or self.config.batch
        for start in range(0, len(names), most):
            self._together({name: self.cuts[name] for name in names[start : start + most]}, most)

    def _longest(self, own: Sequence[Place]) -> int:
        """Return the length of a chain's longest context in tokens."""
        chain, cut = own[-1]
        return len(chain.ids) + sum(map(len, chain.steps[:cut]))

    def _together(self, cuts: Mapping[str, Sequence[Place]], most: int) -> None:
        """Sample these chains, with at most ``most`` sessions at a time."""
        # if there are few chains, open several sessions of each to fill the batch
        full = min(most, self.config.batch) // len(cuts)
        self.lanes = max(1, min(self.config.samples, full))
        self.sessions = {
            name: [self.pair.context(own[0][0].question, own[0][0].ids) for _ in range(self.lanes)]
            for name, own in cuts.items()
        }
        try:
            for turn in range(max(len(own) for own in cuts.values())):
                live = [own[turn] for own in cuts.values() if turn < len(own)]
                for chain, _ in live:
                    for context in self.sessions[chain.id]:
                        context.extend(self._new(chain, turn))
                self._ask(live, self.plan.own, self._own)
                self._ask(live, self.plan.drafted, self._other)
        finally:
            for contexts in self.sessions.values():
                for context in contexts:
                    self.pair.forget(context)

    def _ask(self, live: Sequence[Place], count: int, ask: Callable[[list[Asked]], None]) -> None:
        """Draw ``count`` samples of each context, as many at a time as it has sessions."""
        for start in range(0, count, self.lanes):
            numbers = range(start, min(start + self.lanes, count))
            asked = [(chain, cut, number) for chain, cut in live for number in numbers]
            ask(asked)
            self.tell(len(asked))

    def _session(self, one: Asked) -> Context:
        return self.sessions[one[0].id][one[2] % self.lanes]

    def _own(self, asked: list[Asked]) -> None:
        """Sample the probed model's own next steps."""
        queries = [self._write(one, "own", self._session(one)) for one in asked]
        answers = self.pair.engine.answer(queries)
        for one, query, answer in zip(asked, queries, answers, strict=True):
            self._keep(one, "own", _step(answer), query, answer)

    def _other(self, asked: list[Asked]) -> None:
        """Sample the other model's next steps, and read the probed model's states over them."""
        writing = [self._write(one, "other", self._session(one)) for one in asked]
        written = self.pair.other_engine.answer(writing)
        steps, own = [_step(answer) for answer in written], [_logprobs(a) for a in written]
        queries = [
            self._judge(one, self._session(one), step)
            for one, step in zip(asked, steps, strict=True)
        ]
        answers = self.pair.engine.answer(queries)
        for one, step, query, answer, drafted in zip(
            asked, steps, queries, answers, own, strict=True
        ):
            self._keep(one, "other", step, query, answer, drafted)


class Freely(_Unit):
    """Runs one plan per chain, about ``batch`` requests at a time; all samples of a chain share one context."""

    def run(self) -> None:
        at_once = max(1, self.config.batch // (self.plan.own + self.plan.drafted))
        for _ in self.pair.solver.driver.run(self._plans(), at_once):
            pass  # samples are saved as they arrive

    def _plans(self) -> Iterable[tuple[Context, Steps[None]]]:
        for own in self.cuts.values():
            chain = own[0][0]
            context = self.pair.context(chain.question, chain.ids)
            yield context, self._along(context, chain)

    def _along(self, context: Context, chain: Chain) -> Steps[None]:
        try:
            for turn, (_, cut) in enumerate(self.cuts[chain.id]):
                context.extend(self._new(chain, turn))
                yield self._prefix(context)
                counts = {"own": self.plan.own, "other": self.plan.drafted}
                asked = [
                    (by, (chain, cut, n)) for by, count in counts.items() for n in range(count)
                ]
                for start in range(0, len(asked), self.config.batch):
                    portion = asked[start : start + self.config.batch]
                    yield from self._sample(context, portion)
                    self.tell(len(portion))
        finally:
            self.pair.forget(context)

    def _prefix(self, context: Context) -> tuple[Query, ...]:
        """Query the context once, so that the samples find it in the prefix cache."""
        roles = [self.pair.role, *([self.pair.other] if self.plan.drafted else [])]
        nobody = random.Random(0)  # unused: nothing is drawn
        return tuple(Query(role, context, self.config.sampling, nobody) for role in roles)

    def _sample(self, context: Context, asked: Sequence[tuple[str, Asked]]) -> Steps[None]:
        queries = tuple(self._write(one, writer, context) for writer, one in asked)
        answers: Sequence[Answer] = yield queries
        unread: list[tuple[Asked, list[int], list[float]]] = []
        for (writer, one), query, answer in zip(asked, queries, answers, strict=True):
            if writer == "own":
                self._keep(one, writer, _step(answer), query, answer)
            else:
                unread.append((one, _step(answer), _logprobs(answer)))
        if not unread:
            return
        queries = tuple(self._judge(one, context, step) for one, step, _ in unread)
        answers = yield queries
        for (one, step, drafted), query, answer in zip(unread, queries, answers, strict=True):
            self._keep(one, "other", step, query, answer, drafted)


def _step(answer: Answer) -> list[int]:
    """Return the generated unit, without tokens past its end."""
    return answer.tokens[: answer.unit_ends()[0]]


def _logprobs(answer: Answer) -> list[float]:
    """Return the writer's log-probabilities of the unit that it generated."""
    found: list[float] = answer[LOGPROBS].tolist()[: answer.unit_ends()[0]]
    return found
