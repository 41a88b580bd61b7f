"""One factor for all sizes of a model's passes under a load: what one size shows, the others follow."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from semspec.decoding.costs import CHAIN, READ, WATCH, WRITE, Costs, Curve
from semspec.decoding.crowd import Crowd
from semspec.decoding.drift import MOST, Drift
from semspec.decoding.plain_price import PlainPrice
from semspec.types import Answer, Context, Generate, Query, Read, Sampling, What

LOAD = 64
OFTEN = 40  # measurements of a size by the time the texts have grown


def seconds(size: float, slower: float = 1.0) -> float:
    """Return what a pass over ``size`` tokens of each problem takes."""
    return 0.02 * (1 + 0.4 * size) * slower


def measured(*sizes: int, load: int = LOAD) -> Costs:
    """Return costs that know these sizes."""
    costs = Costs()
    for size in sizes:
        for _ in range(OFTEN):
            took(costs, "target", READ, load, size, seconds(size))
    return costs


def took(
    costs: Costs,
    who: str,
    kind: str,
    load: int,
    size: int,
    seconds: float,
    own: float = 0.0,
    passes: float = 1,
) -> None:
    """Measure a pass as the driver does: once it is over, and once the plans have gone on."""
    costs.follow(who, kind, load, size, seconds, passes)
    costs.add(who, kind, load, size, seconds, own=own)


def of(costs: Costs, size: float, load: int = LOAD) -> float:
    found = costs.seconds("target", READ, size, load)
    assert found is not None
    return found


def test_what_one_size_shows_the_others_follow() -> None:
    costs = measured(1, 3, 7)
    for _ in range(12):
        took(costs, "target", READ, LOAD, 3, seconds(3, 2.0))
    assert costs.drift(LOAD) == pytest.approx(2.0, rel=0.04)
    for size in (1, 2, 3, 5, 7):
        assert of(costs, size) == pytest.approx(seconds(size, 2.0), rel=0.04)


def test_written_rows_and_reading_share_it_and_other_loads_and_models_do_not() -> None:
    costs = measured(1, 5)
    for who, load in (("target", LOAD), ("target", 4), ("draft", LOAD)):
        for _ in range(6):
            took(costs, who, WRITE, load, 16, 0.4, passes=16)
    for slower in (1.0, 1.8):
        for _ in range(6):
            took(costs, "target", READ, LOAD, 5, seconds(5, slower), passes=4)
    written = {
        (who, load): costs.seconds(who, WRITE, 16, load)
        for who, load in (("target", LOAD), ("target", 4), ("draft", LOAD))
    }
    assert written["target", LOAD] == pytest.approx(0.4 * 1.8, rel=0.02)
    assert written["target", 4] == written["draft", LOAD] == pytest.approx(0.4)


def test_a_difference_between_writing_and_reading_is_no_drift() -> None:
    """Whenever drafts are read, passes seem to take 1.3 times less, and more again once rows are written."""
    costs = measured(5)
    for _ in range(6):
        took(costs, "target", WRITE, LOAD, 16, 0.4, passes=16)
    jumps = []
    for _ in range(6):
        before = costs.drift(LOAD)
        for _ in range(6):
            took(costs, "target", READ, LOAD, 5, seconds(5) * 1.2 / 1.3)
        jumps.append(before / costs.drift(LOAD))
        assert of(costs, 5) == pytest.approx(seconds(5) * 1.2 / 1.3, rel=0.02)
        took(costs, "target", WRITE, LOAD, 16, 0.4 * 1.2, passes=16)
        assert costs.drift(LOAD) == pytest.approx(1.2, rel=0.01)
    assert jumps[-1] == pytest.approx(1.0, abs=0.02) and jumps[1] > jumps[2] > jumps[3]


def test_one_problem_has_a_context_price_and_no_drift() -> None:
    costs = measured(1, 5, load=1)
    for _ in range(20):
        took(costs, "target", READ, 1, 5, seconds(5, 2.0))
    assert costs.drift(1) == 1.0 and of(costs, 1, 1) == pytest.approx(seconds(1))


def test_a_drafters_own_work_does_not_drift() -> None:
    costs = measured(1, 5)
    for slower in (1.0, 2.0):
        for _ in range(6):
            took(costs, "draft", CHAIN, LOAD, 4, 0.01 * slower)
    assert not any(who == "draft" for who, _ in costs.drifts)


def test_the_plans_own_seconds_do_not_grow_with_the_passes() -> None:
    costs = Costs()
    for size in (1, 6):
        for _ in range(OFTEN):
            took(costs, "target", READ, LOAD, size, seconds(size), own=0.01)
    for _ in range(12):
        took(costs, "target", READ, LOAD, 1, seconds(1, 2.0), own=0.01)
    assert of(costs, 6) == pytest.approx(seconds(6, 2.0) + 0.01, rel=0.04)


def test_a_single_slow_pass_changes_little_and_is_soon_forgotten() -> None:
    drift = Drift()
    drift.follow(100.0, 1, True)
    assert 1.0 < drift.factor < MOST
    for _ in range(6):
        drift.follow(1.0, 1, True)
    assert drift.factor == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_short_drafts_measured_late_do_not_look_dear(seed: int) -> None:
    """Long drafts were measured while the texts were short, short ones since they have grown.

    Without a drift, passes over two tokens each seem to take about as long as those over six.
    """
    randomness = random.Random(seed)
    costs, without = Costs(), Curve()
    for turn in range(200):
        slower = 1 + turn / 200  # texts grow
        size = randomness.choice((5, 6, 7) if turn < 100 else (1, 2, 3))
        one = seconds(size, slower) * randomness.uniform(0.9, 1.1)
        took(costs, "target", READ, LOAD, size, one)
        without.add(size, one)
    truth = seconds(6) / seconds(2)
    assert of(costs, 6) / of(costs, 2) == pytest.approx(truth, rel=0.1)
    assert without.at(6) / without.at(2) < 0.8 * truth


def read(costs: Costs, seconds: float, fed: Sequence[int], prompt: int = 0) -> None:
    """Report a pass that reads so many tokens of each problem, and their prompts."""
    asked = []
    for number, count in enumerate(fed):
        query = Query(
            "target",
            Context(number, list(range(50))),
            Sampling(1.0),
            random.Random(0),
            tokens=[1] * (count - 1),
            reads=(Read(What.PROBS),),
        )
        asked.append((query, Answer(fed=count + prompt)))
    costs.passed(asked, seconds, LOAD)
    costs.took(asked, seconds, 0.0, LOAD)


def test_a_pass_that_reads_prompts_says_nothing_of_the_others() -> None:
    costs = measured(2, 40)
    for _ in range(5):
        read(costs, seconds(40, 3.0), [2] * LOAD, prompt=38)
    assert costs.drift(LOAD) == 1.0
    for _ in range(12):
        read(costs, seconds(2, 3.0), [2] * LOAD)
    assert costs.drift(LOAD) == pytest.approx(3.0, rel=0.12)


def test_a_pass_with_one_long_draft_says_nothing_of_the_others() -> None:
    """Its size is that of the longest, but it takes about as long as one over short drafts."""
    costs = measured(2, 20)
    for _ in range(5):
        read(costs, seconds(2.3), [20] + [2] * (LOAD - 1))
    assert costs.drift(LOAD) == 1.0
    for _ in range(5):
        read(costs, seconds(20, 1.5), [20] * (LOAD // 2) + [16] * (LOAD // 2))
    assert costs.drift(LOAD) > 1.3


def test_a_row_is_priced_at_the_drift_that_it_shows() -> None:
    """The driver tells how long a row took before the problems go on: a row that took 1.4 times as long is no cheap one that grew dearer."""
    costs = Costs()
    context = Context(0, list(range(50)))
    query = Query("target", context, Sampling(1.0), random.Random(0), generate=Generate(16))
    asked = [(query, Answer([1] * 16, fed=16))] * 4
    for _ in range(4):
        costs.took(asked, 0.32, 0.0, 4)
    crowd, now, token = Crowd(4), 0.0, 0.0
    for _ in range(2):
        began, now = now, now + 0.448
        costs.passed(asked, 0.448, 4)
        token = costs.token(4) or 0.0
        for _ in range(4):
            crowd.closed(16, began, now, token, False, drift=costs.drift(4))
            crowd.row(now, token, costs.drift(4))
        costs.took(asked, 0.448, 0.0, 4)
        crowd.row(now + 0.01, costs.token(4) or 0.0, costs.drift(4))
        assert crowd.plain.token == pytest.approx(0.028, rel=0.01)


def test_a_pass_of_few_problems_moves_it_less_and_a_long_row_moves_it_more() -> None:
    def after(passes: float) -> float:
        drift = Drift()
        drift.follow(1.5, passes, True)
        return drift.factor

    assert 1 < after(0.25) < after(1) < after(16) <= 1.5
    assert after(0.0) == 1.0
    four = Drift()
    for _ in range(4):
        four.follow(1.5, 0.25, True)
    assert 1.1 < four.factor <= after(1)


def test_a_recorded_table_has_the_seconds_of_its_end() -> None:
    costs = measured(1, 6)
    for _ in range(12):
        took(costs, "target", READ, LOAD, 6, seconds(6, 2.0))
    again = Costs.of(costs.told())
    for size in (1, 6):
        assert of(again, size) == pytest.approx(seconds(size, 2.0), rel=0.04)
    assert again.drift(LOAD) == 1.0 and again.fixed


def test_watched_rows_drift_with_plain_ones() -> None:
    costs = Costs()
    for kind in (WRITE, WATCH):
        for _ in range(6):
            took(costs, "target", kind, LOAD, 16, 0.4, passes=16)
    took(costs, "target", WRITE, LOAD, 16, 0.6, passes=16)
    watched = costs.seconds("target", WATCH, 16, LOAD)
    assert watched == pytest.approx(0.6, rel=0.02)


def test_the_price_of_a_plain_token_follows() -> None:
    price = PlainPrice(4)
    price.now(0.02, 1.0)
    for batch in range(4):
        for _ in range(4):
            price.wrote(16, 0.48, (batch, batch + 0.48))
    assert price.token == pytest.approx(0.03) and price.above == pytest.approx(1.5)
    price.now(0.04, 2.0)  # passes take twice as long now
    assert price.token == pytest.approx(0.06) and price.above == pytest.approx(1.5)
    for _ in range(4):  # rows written now confirm it
        price.wrote(16, 0.96, (9.0, 9.96))
    price.now(0.02, 1.0)
    assert price.token == pytest.approx(0.03)


@pytest.mark.parametrize(("follows", "doubted"), [(True, False), (False, True)])
def test_drafts_are_not_doubted_because_texts_have_grown(follows: bool, doubted: bool) -> None:
    """Five tokens took as long as three plain ones; then all passes take 1.8 times as long."""
    crowd, now, token = Crowd(16), 0.0, 0.02

    def turn(slower: float) -> None:
        nonlocal now
        drift = slower if follows else 1.0
        rows = [crowd.row(now, token * drift, drift) for _ in range(crowd.size)]
        took = token * slower * (max(rows) or 3.0)
        began, now = now, now + took
        for row in rows:
            crowd.closed(row or 5, began, now, token * drift, False, drift=drift)

    while crowd.state != "drafting":
        assert now < 10
        turn(1.0)
    for _ in range(20):
        turn(1.0)
    wrote = crowd.written
    for _ in range(60):
        turn(1.8)
    assert (crowd.written > wrote) is doubted
