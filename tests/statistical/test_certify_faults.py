"""Certificates of correct servers and of servers with planted faults, over toy models of known law."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import binom

from semspec.certify.sampled import (
    AgainstLaw,
    AgainstSample,
    Ask,
    KnownLaws,
    Result,
    examine,
    rounds_of,
)
from semspec.engines.toy import Toy
from semspec.types import Sampling
from tests.support.deep import samples
from tests.support.faulty_speculation import FAULTS, Speculating, ToyReference

pytestmark = pytest.mark.deep(quick=True)
TOY = Toy(vocabulary=5, seed=3)
STOPPING = Toy(vocabulary=5, seed=3, stop=True)
WARM = Sampling(0.7, top_p=0.9)
RUNS = 1_000
SEEDS = samples(quick=1, deep=8)
ALPHA = 0.1  # of the honest servers: so that errors come often enough to be counted
SURE = 1e-4


def certified(
    toy: Toy,
    fault: str = "",
    seed: int = 0,
    sampling: Sampling = WARM,
    against: str = "law",
    sampled: bool = True,
    prefixes: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), (4, 4), (1, 2, 3)),
    **asked: Any,
) -> Result:
    ask = Ask(**{"sampling": sampling, "length": 5, "detect": 0.1, **asked})
    writer = Speculating(toy, fault, seed, sampled)
    counted: AgainstLaw | AgainstSample
    if against == "law":
        counted, other = AgainstLaw(prefixes, ToyReference(toy), ask, KnownLaws()), None
    else:
        counted, other = AgainstSample(prefixes, ask), Speculating(toy, "", seed + 7919, plain=True)
    return examine(counted, ask, rounds_of(writer, prefixes, ask, other), lambda _: None)


@pytest.mark.parametrize("against", ["law", "sample"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault: str, against: str) -> None:
    for seed in range(SEEDS):
        found = certified(TOY, fault, seed, against=against)
        assert found.faulty
        assert found.outcomes < found.planned, "gross faults are found early"


@pytest.mark.parametrize("against", ["law", "sample"])
@pytest.mark.deep
def test_honest_servers_pass_at_the_stated_error_rate(against: str) -> None:
    """Of honest servers at most the share ``alpha`` is called faulty; these runs could show twice as many."""
    small: dict[str, Any] = {"prefixes": ((0, 1), (2, 3)), "length": 3, "detect": 0.2, "batch": 40}
    toys = [Toy(vocabulary=4, seed=s, stop=s % 2 == 1) for s in range(10)]
    kinds = [Sampling(1.0), WARM, Sampling(0.6, top_k=3), Sampling(1.2, min_p=0.1)]
    wrong = 0
    for run in range(RUNS):
        toy, sampling = toys[run % len(toys)], kinds[run % len(kinds)]
        own = {"sampled": run % 3 != 0, "against": against, "alpha": ALPHA, **small}
        wrong += certified(toy, "", 1_000 + run, sampling, **own).faulty
    assert binom.sf(wrong - 1, RUNS, ALPHA) > SURE, wrong
    assert binom.sf(wrong - 1, RUNS, 2 * ALPHA) > 1 - SURE, wrong


def test_a_difference_as_small_as_promised_is_found() -> None:
    """A server that takes its token from a uniform distribution in a share of all cases, at one token."""

    class Slightly(Speculating):
        def one(self, *asked: Any) -> Any:
            out = super().one(*asked)
            rng = asked[-1]
            return (rng.randrange(5), *out[1:]) if rng.random() < 0.3 else out

    # how far this moves the law of the first token
    laws = ToyReference(TOY).laws([(0, 1)], Sampling(1.0))[0]
    moved = 0.3 * sum(abs(laws.of(t) - 0.2) for t in range(5)) / 2
    found = 0
    for seed in range(12):
        ask = Ask(sampling=Sampling(1.0), length=1, detect=moved, power=0.8)
        counted = AgainstLaw([(0, 1)], ToyReference(TOY), ask, KnownLaws())
        writer = Slightly(TOY, "", seed)
        result = examine(counted, ask, rounds_of(writer, [(0, 1)], ask), lambda _: None)
        assert result.stopped == "evidence" or result.detectable < moved * 1.05
        found += result.faulty
    assert binom.cdf(found, 12, 0.8) > 1e-3
