"""The cost of long contexts: found in noisy timings, not found where there is none, and used by decisions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.costs import READ, STEP, WATCH, WRITE, Costs, Curve
from semspec.decoding.economy import Economy
from tests.support.costs import economy, table

Law = Callable[[float, float], float]
FETCHED, COMPUTED = 4e-6, 0.6e-6  # seconds of a cached position: for a pass, and for each token fed


def pass_of(fetched: float, computed: float) -> Law:
    return lambda size, context: 2e-3 + 1e-4 * size + context * (fetched + computed * size)


def texts(problems: int, longest: int, generator: random.Random) -> Iterator[int]:
    """Yield contexts as they come: texts that begin short and grow by a few tokens a round."""
    for _ in range(problems):
        context, end = generator.randint(60, 200), generator.randint(longest // 3, longest)
        while context < end:
            yield context
            context += generator.randint(1, 9)


def measured(
    law: Law,
    longest: int,
    seed: int,
    problems: int = 6,
    noise: float = 0.05,
    outliers: float = 0.01,
) -> Curve:
    """Return the curve of a run in which passes take what ``law`` says, by chance a little longer or much longer."""
    generator, costs = random.Random(seed), Costs()
    for context in texts(problems, longest, generator):
        size = generator.choice((1, 2, 4, 7, 9, 12, 16, 20, 33))
        seconds = law(size, context) * generator.lognormvariate(0, noise)
        if generator.random() < outliers:
            seconds *= generator.uniform(2, 20)
        costs.add("target", READ, 1, size, seconds, context)
    (curve,) = costs.curves.values()
    return curve


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fetched", "computed"), [(FETCHED, COMPUTED), (FETCHED, 0.0), (0.0, COMPUTED)]
)
def test_both_prices_are_found_and_tell_a_pass_at_four_times_the_context(
    seed: int, fetched: float, computed: float
) -> None:
    law = pass_of(fetched, computed)
    curve = measured(law, 1000, seed)
    assert curve.price.fetched == pytest.approx(fetched, abs=0.2 * FETCHED)
    assert curve.price.computed == pytest.approx(computed, abs=0.2 * COMPUTED)
    for size in (1, 4, 16, 33):
        real = law(size, 4000)
        # what is left is mostly the line's own: an average, which outliers of three times as much raise
        assert curve.at(size, 4000) == pytest.approx(real, rel=0.2)
        assert abs(curve.at(size, 4000) - real) < 0.5 * abs(curve.at(size) - real)
        grown = curve.at(size, 4000) - curve.at(size, 1000)
        assert grown == pytest.approx(real - law(size, 1000), rel=0.15, abs=0.1 * real)


@pytest.mark.parametrize("seed", range(8))
def test_where_the_context_costs_nothing_nothing_is_found(seed: int) -> None:
    """Not even on a machine that slows down, by a tenth, and recovers again and again."""
    law = pass_of(0.0, 0.0)
    assert measured(law, 1000, seed).price.of(16) * 1000 < 0.02 * law(16, 0)
    generator, curve, slow = random.Random(seed), Costs(), 0.0
    for context in texts(12, 300, generator):
        slow = 0.98 * slow + generator.gauss(0, 0.02)
        size = generator.choice((1, 4, 9, 16))
        seconds = law(size, context) * (1 + slow) * generator.lognormvariate(0, 0.05)
        curve.add("target", READ, 1, size, seconds, context)
    found = curve.curves["target", READ, 1].price
    assert found.of(9) * 200 < 0.15 * law(9, 0)


def test_nothing_is_said_before_contexts_have_differed() -> None:
    generator, curve = random.Random(0), Costs()
    law = pass_of(FETCHED, COMPUTED)
    for turn in range(64):
        size, context = (1, 4, 9, 16)[turn % 4], 100 + generator.randint(0, 8)
        curve.add("target", READ, 1, size, law(size, context) * generator.gauss(1, 0.05), context)
    one = curve.curves["target", READ, 1]
    assert (one.price.fetched, one.price.computed) == (0.0, 0.0)
    assert all(one.at(size, 4000) == one.at(size) for size in range(1, 40))


def test_an_engine_that_changes_is_followed() -> None:
    generator, costs = random.Random(1), Costs()
    for law in (pass_of(FETCHED, COMPUTED), pass_of(3 * FETCHED, 0.0)):
        for context in texts(16, 1000, generator):
            size = generator.choice((1, 4, 9, 16, 33))
            costs.add("target", READ, 1, size, law(size, context), context)
    price = costs.curves["target", READ, 1].price
    assert price.fetched == pytest.approx(3 * FETCHED, rel=0.1) and price.of(33) < 4 * FETCHED


def test_rows_and_passes_stand_in_for_each_other() -> None:
    """A token of a row is a pass over one; whose price is not known yet takes the other's."""
    generator, costs = random.Random(2), Costs()
    for size in (1, 8, 16):
        costs.add("target", WRITE, 1, size, 2e-3 * size, 100)
        costs.add("target", WATCH, 1, size, 3e-3 * size, 100)
    law = pass_of(FETCHED, COMPUTED)
    for context in texts(6, 1000, generator):
        size = generator.choice((1, 4, 9, 16))
        costs.add("target", READ, 1, size, law(size, context), context)
    reading = costs.curves["target", READ, 1].price
    for kind in (WRITE, WATCH):
        written = costs.curves["target", kind, 1].price
        assert (written.fetched, written.computed) == (0.0, pytest.approx(reading.of(1)))
    grown = (costs.token(1, 1100) or 0) - (costs.token(1, 100) or 0)
    assert grown == pytest.approx(1000 * reading.of(1), rel=0.1)


def test_prices_are_kept_in_tables_and_damaged_ones_are_refused() -> None:
    curve = measured(pass_of(FETCHED, COMPUTED), 1000, 3)
    told = json.loads(json.dumps(curve.told()))
    again = Curve.of(told)
    assert again.told() == curve.told()
    for size, context in ((1, 100), (9, 900), (33, 4000)):
        assert again.at(size, context) == pytest.approx(curve.at(size, context), rel=1e-3)
    del told["position"]  # a table of before
    assert Curve.of(told).at(9, 4000) == pytest.approx(curve.at(9), rel=1e-3)
    with pytest.raises(ValueError, match="no prices of a position"):
        Curve.of({**told, "position": [-1.0, 0.0]})


# ---- decisions ----------------------------------------------------------------------------------


def priced(fetched: float, computed: float) -> Costs:
    """Return a recorded table, in plain tokens behind no context, whose passes and rows cost by the context."""
    costs = table(passing=1.0, fed=0.02, asked=0.01, units=0.02)
    for (who, kind, _), curve in costs.curves.items():
        if who == "target":
            row = kind in (WRITE, WATCH)
            curve.price.fetched = 0.0 if row else fetched
            curve.price.computed = fetched + computed if row else computed
    return costs


def hopeful(costs: Costs) -> Economy:
    return economy(costs, first=0.9)


def units_behind(costs: Costs, context: int) -> int:
    pace = Adaptive(economy=hopeful(costs), longest=32)
    pace.behind(context)
    return pace.units()


def test_drafts_are_shorter_where_each_token_fed_costs_more_behind_a_long_context() -> None:
    computed = priced(0.0, 2e-4)
    lengths = [units_behind(computed, context) for context in (0, 1000, 4000, 16000)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1] + 4


def test_drafts_are_longer_where_positions_are_fetched_once_for_a_whole_pass() -> None:
    fetched = priced(1e-3, 0.0)
    lengths = [units_behind(fetched, context) for context in (0, 1000, 4000)]
    assert lengths == sorted(lengths) and lengths[-1] > lengths[0]


def test_where_the_context_costs_nothing_it_changes_nothing() -> None:
    costs = priced(0.0, 0.0)
    assert len({units_behind(costs, context) for context in (0, 1000, 4000)}) == 1


def test_steps_follow_the_context_as_well() -> None:
    rests = []
    for context in (0, 4000):
        one = economy(priced(0.0, 2e-3), first=0.6)
        one.drafted, one.written, one.bank = 12.0, 12.0, 0.0
        one.beliefs.learn([(("before", "1", ""), True)])  # something of a draft has been kept
        pace = AdaptiveSteps(economy=one, longest=4, cap=64, by_token=True)
        pace.behind(context)
        rests.append(pace.units())
    assert rests[0] > 0 == rests[1]


def test_each_problem_has_the_prices_of_its_own_context() -> None:
    """Two that share what was learned, and take turns."""
    shared = hopeful(priced(0.0, 2e-4))
    short, long = (Adaptive(economy=shared, longest=32) for _ in range(2))
    short.behind(0)
    long.behind(16_000)
    first = short.units(), long.units()
    assert (short.units(), long.units()) == first and first[0] > first[1]


def test_a_plain_token_that_was_timed_at_a_short_context_is_priced_at_the_present_one() -> None:
    costs = priced(1e-3, 0.0)
    one = hopeful(costs)
    one.experience.wrote(16 * 1.108, 16, 100)
    for context in (100, 4100):
        one.behind(context)
        assert one.token == pytest.approx(1 + 1e-3 * context, abs=1.5e-3 * STEP)
        assert one.reading(1) == pytest.approx(1.0, rel=0.05)  # as much as a plain token
