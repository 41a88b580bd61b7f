"""Drawn tokens: is a server's output after some prefixes distributed as the model says?

The next k tokens after each prefix are counted in cells of the law (``laws.Partition``), and each token gets its *place* in
the distribution that it should have been drawn from; places are uniform if it was. If the reference is a server whose law is
unknown, the outcomes of both servers are counted in cells of their pooled distribution.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semspec.certify import statistics
from semspec.certify.endpoints.base import Reference, Writer
from semspec.certify.laws import Law, Partition, Tokens
from semspec.certify.statistics import Cells, Evidence, Found, Pairing
from semspec.errors import UserError
from semspec.results.significance import holm
from semspec.types import Sampling

PLACES = 10  # bins for the places
SLACK = 1e-3  # share of outcomes that may leave the law's support, as programs round differently at a cut
EARLY = 0.2  # share of the error rate that is spent on stopping early
FEWEST = 40  # with fewer outcomes per prefix, no verdict is given

Outcomes = Sequence[Tokens]  # of one round: ``Ask.batch`` after each prefix, prefix by prefix


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked of a server, and how certain the result must be."""

    sampling: Sampling
    length: int = 8  # tokens of an outcome
    alpha: float = 0.01  # probability that an honest server is called faulty
    power: float = 0.9  # probability that a law at the distance ``detect`` is found
    detect: float = 0.1  # total variation
    budget: int = 200_000  # the most tokens to be written
    cells: int = 24  # of each prefix, approximately
    batch: int = 16  # requests per prefix and round


@dataclass(frozen=True)
class Test:
    """One suspicion and what the counts say about it."""

    about: str  # cells, places, all, neighbours, rounds, outside
    prefix: int | None  # the prefix's number (for places, the token's); None: all
    outcomes: int
    found: Found
    adjusted: float | None = None  # p corrected by Holm over all tests of the certificate
    detectable: float | None = None  # total variation


@dataclass
class Result:
    """The sampled part of a certificate."""

    outcomes: int  # per prefix
    planned: int
    tokens: int
    log_evidence: float  # natural logarithm of the total evidence, at the end
    stopped: str  # evidence, complete, budget
    faulty: bool
    tests: list[Test]
    detectable: float  # total variation that would have been found at any one prefix
    detectable_place: float | None  # likewise for the places, which all prefixes share
    power: float
    alpha: float
    depth: float  # tokens that the cells distinguish, on average
    notes: list[str] = field(default_factory=list)


class AgainstLaw:
    """Outcomes counted against the distributions of a reference."""

    def __init__(
        self, prefixes: Sequence[Tokens], reference: Reference, ask: Ask, known: KnownLaws
    ) -> None:
        self.prefixes, self.reference, self.ask, self.known = prefixes, reference, ask, known
        self.partitions = [
            Partition(self._laws, prefix, ask.length, ask.cells, 0.0) for prefix in prefixes
        ]
        self.cells = [Evidence(partition.probs) for partition in self.partitions]
        self.places = [Evidence([1 / PLACES] * PLACES) for _ in range(ask.length)]
        self.outside = Evidence([1 - SLACK, SLACK])
        chances = [math.fsum(p * p for p in one.probs) for one in self.partitions]
        self.alike = {
            name: [Evidence([1 - c, c] if c < 1 else [1.0]) for c in chances]
            for name in ("neighbours", "rounds")
        }
        self._before: list[list[int]] | None = None
        self._seen = 0

    def _laws(self, prefixes: Sequence[Tokens]) -> list[Law]:
        return self.known.get(prefixes, self.reference, self.ask.sampling)

    @property
    def tests_planned(self) -> int:
        return len(self.prefixes) + self.ask.length + 4

    def freedom(self) -> int:
        return max(1, *(len(one.probs) - 1 for one in self.partitions))

    def depth(self) -> float:
        return sum(one.depth() for one in self.partitions) / len(self.partitions)

    def add(self, outcomes: Outcomes, others: Outcomes = ()) -> None:
        batch = self.ask.batch
        if self.reference.cheap:
            self._laws([*dict.fromkeys(self._nodes(outcomes))])
        now: list[list[int]] = []
        for at, prefix in enumerate(self.prefixes):
            own = outcomes[at * batch : (at + 1) * batch]
            cells = [self.partitions[at].cell(outcome) for outcome in own]
            for i, (outcome, cell) in enumerate(zip(own, cells, strict=True)):
                impossible = self._place(prefix, outcome, f"{at} {self._seen + i}")
                self.outside.add(int(impossible))
                if self.partitions[at].probs[cell] > 0:
                    self.cells[at].add(cell)
            self._compare("neighbours", at, zip(cells[::2], cells[1::2], strict=False))
            if self._before is not None:
                self._compare("rounds", at, zip(cells, self._before[at], strict=False))
            now.append(cells)
        # each round is in only one comparison, or the pairs would share outcomes
        self._before = now if self._before is None else None
        self._seen += batch

    def _compare(self, name: str, at: int, pairs: Iterator[tuple[int, int]]) -> None:
        evidence = self.alike[name][at]
        if len(evidence.probs) > 1:
            for a, b in pairs:
                evidence.add(int(a == b))

    def _nodes(self, outcomes: Outcomes) -> Iterator[Tokens]:
        for i, outcome in enumerate(outcomes):
            prefix = self.prefixes[i // self.ask.batch]
            for depth in range(len(outcome)):
                yield (*prefix, *outcome[:depth])

    def _place(self, prefix: Tokens, outcome: Tokens, number: str) -> bool:
        """Count the places of an outcome's tokens; return True if a token cannot be drawn."""
        rng = random.Random(f"place {number}")
        for depth, token in enumerate(outcome):
            law = self.known.laws.get((*prefix, *outcome[:depth]))
            if law is None:  # no bias: whether it is known depends only on the tokens before
                return False
            if not law.possible(token):
                return True
            place = law.place(token, rng.random())
            self.places[depth].add(min(PLACES - 1, int(PLACES * place)))
        return False

    def log_evidence(self) -> float:
        """Return the log of the average of two martingales: the mean evidence of all tests, and the product over prefixes."""
        each = [one.log() for one in self.cells]
        rest = [*self.places, self.outside, *self.alike["neighbours"], *self.alike["rounds"]]
        single = statistics.log_mean([*each, *(one.log() for one in rest)])
        return statistics.log_mean([single, math.fsum(each)])

    def tests(self, alpha: float, power: float, draws: int = statistics.DRAWS) -> list[Test]:
        rng = np.random.default_rng(0)
        groups = [
            Cells.of(one.counts, partition.probs)
            for one, partition in zip(self.cells, self.partitions, strict=True)
        ]
        level = alpha / self.tests_planned
        found = [
            Test(
                "cells", at, group.n, statistics.chi_square([group], rng, draws),
                detectable=statistics.detectable(group.n, group.freedom, level, power),
            )
            for at, group in enumerate(groups)
        ]  # fmt: skip
        total = sum(group.n for group in groups)
        found.append(Test("all", None, total, statistics.chi_square(groups, rng, draws)))
        for depth, one in enumerate(self.places):
            counts = Cells.of(one.counts, one.probs)
            limit = statistics.detectable(counts.n, counts.freedom, level, power)
            test = statistics.chi_square([counts], rng, draws)
            found.append(Test("places", depth, counts.n, test, detectable=limit))
        for name, evidence in self.alike.items():
            used = [one for one in evidence if len(one.probs) > 1]
            chances = [(sum(one.counts), one.probs[1]) for one in used]
            seen = sum(one.counts[1] for one in used)
            pairs = sum(n for n, _ in chances)
            found.append(Test(name, None, pairs, statistics.too_many(seen, chances)))
        n, seen = sum(self.outside.counts), self.outside.counts[1]
        found.append(Test("outside", None, n, statistics.too_many(seen, [(n, SLACK)])))
        return found


@dataclass
class KnownLaws:
    """Laws by prefix; ``keep`` stores new ones if the reference is not ``cheap``."""

    laws: dict[Tokens, Law] = field(default_factory=dict)
    keep: Callable[[Mapping[Tokens, Law]], None] | None = None

    def get(
        self, prefixes: Sequence[Tokens], reference: Reference, sampling: Sampling
    ) -> list[Law]:
        missing = [prefix for prefix in prefixes if prefix not in self.laws]
        if missing:
            new = dict(zip(missing, reference.laws(missing, sampling), strict=True))
            self.laws |= new
            if self.keep is not None and not reference.cheap:
                self.keep(new)
        return [self.laws[prefix] for prefix in prefixes]


class AgainstSample:
    """Outcomes of two servers, compared with each other."""

    def __init__(self, prefixes: Sequence[Tokens], ask: Ask) -> None:
        self.prefixes, self.ask = prefixes, ask
        self.own: list[list[Tokens]] = [[] for _ in prefixes]
        self.others: list[list[Tokens]] = [[] for _ in prefixes]
        self.pairings = [[Pairing() for _ in range(ask.length)] for _ in prefixes]

    @property
    def tests_planned(self) -> int:
        return len(self.prefixes)

    def freedom(self) -> int:
        return self.ask.cells

    def depth(self) -> float:
        return sum(self._cells(at)[2] for at in range(len(self.prefixes))) / len(self.prefixes)

    def add(self, outcomes: Outcomes, others: Outcomes) -> None:
        batch = self.ask.batch
        for at in range(len(self.prefixes)):
            part = slice(at * batch, (at + 1) * batch)
            for a, b in zip(outcomes[part], others[part], strict=True):
                self.own[at].append(a)
                self.others[at].append(b)
                for depth, pairing in enumerate(self.pairings[at], 1):
                    pairing.add(a[:depth], b[:depth])

    def log_evidence(self) -> float:
        return statistics.log_mean([one.log for each in self.pairings for one in each])

    def _cells(self, at: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Count both samples in cells made from the two together, and return both counts and the cells' depth."""
        both = [*self.own[at], *self.others[at]]

        def laws(nodes: Sequence[Tokens]) -> list[Law]:
            return [_empirical(both, node) for node in nodes]

        least = 2 * statistics.LEAST / max(1, len(both))
        cells = Partition(laws, (), self.ask.length, self.ask.cells, least)
        pools = statistics.pooled(cells.probs, len(self.own[at]))
        a, b = (
            np.bincount([pools[cells.cell(one)] for one in side], minlength=max(pools) + 1)
            for side in (self.own[at], self.others[at])
        )
        return a, b, cells.depth()

    def tests(self, alpha: float, power: float, draws: int = statistics.DRAWS) -> list[Test]:
        rng = np.random.default_rng(0)
        found = []
        for at in range(len(self.prefixes)):
            a, b, _ = self._cells(at)
            kept = (a + b) > 0
            test = statistics.same_source(a[kept], b[kept], rng, draws)
            n, level = int(a.sum()), alpha / self.tests_planned
            limit = statistics.detectable(n, test.freedom, level, power, samples=2)
            found.append(Test("cells", at, n, test, detectable=limit))
        return found


def _empirical(outcomes: Sequence[Tokens], node: Tokens) -> Law:
    after = Counter(o[len(node)] for o in outcomes if o[: len(node)] == node and len(o) > len(node))
    total = after.total()
    ordered = sorted(after.items(), key=lambda one: (-one[1], str(one[0])))
    return Law(tuple(t for t, _ in ordered), tuple(n / total for _, n in ordered))


# given a round's number, its outcomes and those of the reference server (none without one)
Source = Callable[[int], tuple[Outcomes, Outcomes]]


def plan(counted: AgainstLaw | AgainstSample, ask: Ask) -> int:
    """Return how many rounds are needed, within the budget; raise UserError if the budget is far too small."""
    samples = 2 if isinstance(counted, AgainstSample) else 1
    level = ask.alpha * (1 - EARLY) / counted.tests_planned
    outcomes = statistics.needed(ask.detect, counted.freedom(), level, ask.power, samples)
    round_ = len(counted.prefixes) * ask.batch * ask.length * samples
    rounds = min(math.ceil(outcomes / ask.batch), ask.budget // round_)
    if rounds * ask.batch < FEWEST:
        least = math.ceil(FEWEST / ask.batch) * round_
        raise UserError(
            f"budget={ask.budget} is too small for {len(counted.prefixes)} prefixes of {ask.length} tokens:"
            f" give at least budget={least}"
        )
    return rounds


def examine(
    counted: AgainstLaw | AgainstSample, ask: Ask, source: Source, progress: Callable[[int], None]
) -> Result:
    """Count rounds until the evidence is sufficient or all rounds are done, and return the result."""
    rounds = plan(counted, ask)
    samples = 2 if isinstance(counted, AgainstSample) else 1
    enough, done, stopped = -math.log(EARLY * ask.alpha), 0, "complete"
    while done < rounds:
        counted.add(*source(done))
        done += 1
        progress(done)
        if counted.log_evidence() >= enough:
            stopped = "evidence"
            break
    return conclude(counted, ask, done, rounds, stopped, samples)


def conclude(
    counted: AgainstLaw | AgainstSample,
    ask: Ask,
    done: int,
    rounds: int,
    stopped: str,
    samples: int,
) -> Result:
    """Return the result of the rounds counted so far."""
    late = ask.alpha * (1 - EARLY)
    early = stopped == "evidence"
    # after an early stop the tests only describe, because the evidence has decided
    tests = counted.tests(late, ask.power, 0 if early else statistics.DRAWS)
    adjusted = holm([test.found.p for test in tests])
    tests = [
        Test(t.about, t.prefix, t.outcomes, t.found, p, t.detectable)
        for t, p in zip(tests, adjusted, strict=True)
    ]
    faulty = early or any(t.adjusted is not None and t.adjusted <= late for t in tests)
    limits = {
        about: [t.detectable for t in tests if t.about == about and t.detectable is not None]
        for about in ("cells", "places")
    }
    worst = max(limits["cells"], default=1.0)
    if stopped == "complete" and worst > ask.detect * 1.1:
        stopped = "budget"
    return Result(
        outcomes=done * ask.batch,
        planned=rounds * ask.batch,
        tokens=done * ask.batch * len(counted.prefixes) * ask.length * samples,
        log_evidence=counted.log_evidence(),
        stopped=stopped,
        faulty=faulty,
        tests=tests,
        detectable=worst,
        detectable_place=max(limits["places"], default=None),
        power=ask.power,
        alpha=ask.alpha,
        depth=counted.depth(),
    )


def rounds_of(
    writer: Writer, prefixes: Sequence[Tokens], ask: Ask, other: Writer | None = None
) -> Source:
    """Return a source that asks the servers."""
    asked = [prefix for prefix in prefixes for _ in range(ask.batch)]

    def source(_: int) -> tuple[Outcomes, Outcomes]:
        own = writer.write(asked, ask.length, ask.sampling)
        return own, other.write(asked, ask.length, ask.sampling) if other is not None else ()

    return source


def as_json(result: Result) -> dict[str, Any]:
    """Return the result for certificate.json."""
    return {
        "outcomes_per_prefix": result.outcomes,
        "planned_per_prefix": result.planned,
        "tokens": result.tokens,
        "stopped": result.stopped,
        "faulty": result.faulty,
        "log10_evidence": min(result.log_evidence / math.log(10), 300.0),
        "alpha": result.alpha,
        "power": result.power,
        "detectable_total_variation": result.detectable,
        "detectable_total_variation_of_places": result.detectable_place,
        "tokens_told_apart": result.depth,
        "tests": [
            {
                "about": t.about,
                "number": t.prefix,
                "outcomes": t.outcomes,
                "statistic": t.found.statistic,
                "degrees_of_freedom": t.found.freedom,
                "p": t.found.p,
                "adjusted_p": t.adjusted,
                "detectable_total_variation": t.detectable,
            }
            for t in result.tests
        ],
        "notes": result.notes,
    }
