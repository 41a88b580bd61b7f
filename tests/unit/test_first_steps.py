"""Whole steps of an unknown draft: when one is tried, how long it is, and what is learned from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semspec.decoding.budget_steps import FREE, KNOWN, RUNAWAY, SHORTEST, AdaptiveSteps
from semspec.decoding.costs import ASK, Costs
from semspec.decoding.economy import ALLOWANCE, EARNED, Economy
from semspec.decoding.experience import DEBT, EXPLORE
from semspec.types import Draft, Round
from tests.support.costs import economy, table
from tests.unit.test_pace import step_round

LENGTH = 25  # tokens of the target's steps


def paces(one: Economy, count: int = 1) -> list[AdaptiveSteps]:
    return [AdaptiveSteps(economy=one, longest=1, cap=512) for _ in range(count)]


def wrote(pace: AdaptiveSteps, length: int = LENGTH) -> None:
    """The target has written a step while nothing was drafted."""
    pace.observe(step_round(0, 0, length))


def tried(pace: AdaptiveSteps, kept: int, length: int = LENGTH) -> None:
    """A drafted step was kept, or not."""
    done = step_round(1, kept, length)
    pace.asked(1, 0.4 * length)
    pace.cut(Draft(list(done.drafted), list(done.ends)))
    pace.observe(done)


def after(one: Economy, drafts: Sequence[int]) -> AdaptiveSteps:
    """Return a pace after the target's first step and drafted steps, each kept (1) or not (0)."""
    (pace,) = paces(one)
    pace.units()
    wrote(pace)
    for kept in drafts:
        tried(pace, kept)
    return pace


def test_the_target_writes_the_first_step_and_the_first_draft_is_about_as_long() -> None:
    (pace,) = paces(economy(table(units=10.0)))
    assert pace.units() == 0 and pace.alone(999) == 1
    wrote(pace)
    assert pace.units() == 1 and pace.unit_cap() == LENGTH
    pace.economy.written = 3.0
    assert pace.unit_cap() == SHORTEST
    pace.economy.written = float(LENGTH)
    tried(pace, 1)
    assert pace.units() == 1 and pace.unit_cap() == RUNAWAY * LENGTH  # what is kept may be longer
    for _ in range(KNOWN):
        tried(pace, 1)
    assert pace.units() == 1 and pace.unit_cap() == 2 * LENGTH


def test_one_problem_tries_while_the_others_write() -> None:
    first, second, third = paces(economy(table(units=10.0)), 3)
    assert [pace.units() for pace in (first, second, third)] == [0, 0, 0]
    for pace in (first, second, third):
        wrote(pace)
    assert [pace.units() for pace in (first, second, third)] == [1, 0, 0]
    assert second.alone(999) == 1 and second.onward and not first.onward
    wrote(second)
    assert second.units() == 0  # the first one is not done yet
    first.over()  # and leaves before it is
    assert [pace.units() for pace in (third, second)] == [1, 0]
    tried(third, 1)  # what it tried was kept: all draft from now on
    assert [pace.units() for pace in (second, third)] == [1, 1]


def spread(one: Economy, rounds: int, kept: int) -> list[int]:
    """Let eight problems write side by side, of whose drafts nothing is kept: how many tokens were written before each try."""
    under_way, at, written = paces(one, 8), list[int](), 0
    for _ in range(rounds):
        asked = [(pace, pace.units()) for pace in under_way]
        assert sum(units for _, units in asked) <= 1
        for pace, drafts in asked:
            if drafts:
                at.append(written)
                tried(pace, kept)
            else:
                wrote(pace)
            written += LENGTH
    return at


@pytest.mark.parametrize(("units", "free"), [(8.0, 4), (17.0, 2), (23.0, 1)])
def test_tries_in_vain_of_all_problems_together_cost_little(units: float, free: int) -> None:
    one = economy(table(units=units, passing=1.0, fed=0.02), 0.75)
    at = spread(one, 300, 0)
    cost = units + 1.0 + 0.02 * (1 + LENGTH)
    assert free == int(FREE / cost)
    # all of them have cost no more than that, and half a hundredth of what was written by then
    due = [max(0.0, (number * cost - FREE) / EXPLORE) for number in range(1, len(at) + 1)]
    assert at == pytest.approx(due, abs=8 * (free + 2) * LENGTH)
    assert len(at) > free + 2 and due[free - 1] == 0.0 < due[free]


def test_a_try_costs_every_problem_that_shares_the_passes_what_it_costs_its_own() -> None:
    """Eight problems wait for each try: the next one is due by the time, not by the tokens of all of them."""
    one = economy(table(units=17.0, passing=1.0, fed=0.02, together=8), 0.75)
    one.together = 8
    at, cost = spread(one, 600, 0), 17.0 + 1.0 + 0.02 * (1 + LENGTH)
    due = [max(0.0, 8 * (number * cost - FREE) / EXPLORE) for number in range(1, len(at) + 1)]
    assert at == pytest.approx(due, abs=8 * 4 * LENGTH)
    assert len(at) > 3


def test_a_draft_that_could_not_pay_if_it_were_right_is_tried_once() -> None:
    one = economy(table(units=40.0, fed=0.02), 0.75)
    assert len(spread(one, 20, 0)) == 1


def test_what_may_be_lost_grows_until_the_next_try_can_be_afforded() -> None:
    """Of drafts of which some were kept, but too few."""
    one = economy(table(units=20.0, fed=0.02), 0.75)
    pace = after(one, (1, 0, 0, 0, 0))
    one.bank = 0.0
    assert pace.units() == 0 and one.wanted > ALLOWANCE
    missing, written = one.wanted, 0
    while not pace.units():
        wrote(pace)
        written += LENGTH
        assert written < 100_000
    assert written == pytest.approx(missing / EXPLORE, abs=2 * LENGTH)


def test_a_draft_that_is_expected_to_lose_is_no_longer_than_a_step_of_the_target() -> None:
    one = economy(table(units=20.0, fed=0.02), 0.75)
    pace = after(one, (1, 0, 0, 0, 0))
    one.bank = 100.0
    assert pace.units() == 1 and one.wanted > 0 and pace.unit_cap() == LENGTH


@pytest.mark.parametrize("kept", [0, 1])
def test_drafts_that_bring_less_than_expected_are_paid_from_what_may_be_lost(kept: int) -> None:
    """Also while they are expected to gain: a belief may be wrong on texts of another kind."""
    one = economy(table(units=10.0, passing=1.0, fed=0.02), 0.75)
    pace = after(one, [1] * 40)
    one.bank = before = 20.0
    drafts, cost = 0, 10.0 + 1.0 + 0.02 * (1 + LENGTH)
    while pace.units() and drafts < 8:
        tried(pace, kept)
        drafts += 1
        expected = drafts * (LENGTH - cost if kept else -cost)
        assert one.bank == pytest.approx(min(before + expected, EARNED), abs=1.0)
    # unlucky ones leave a debt that better ones would pay back
    assert drafts == (8 if kept else 3) and (kept or -DEBT < one.bank < 0)


def test_under_another_load_a_step_costs_what_it_did_in_plain_tokens() -> None:
    costs = Costs()
    costs.curves |= table(units=10.0, together=1).curves
    del costs.curves["draft", ASK, 1], costs.curves["nested", ASK, 1]
    costs.curves |= {
        key: curve for key, curve in table(token=2.0, together=4).curves.items() if key[1] != ASK
    }
    costs.fixed = True
    one = Economy(costs, model=True)
    for size in (1, 2, 8, 32, 64):  # nothing but what its tokens cost
        costs.fixed = False
        costs.add("draft", "write", 1, size, 0.4 * size)
        costs.fixed = True
    assert one.asking_steps(1, 25.0) == pytest.approx(10.0)
    costs.fixed = False
    costs.add("draft", ASK, 1, 1, 12.0)
    costs.fixed = True
    assert one.asking_steps(1, 25.0) == pytest.approx(12.0)
    one.together = 4
    assert one.asking_steps(1, 25.0) == pytest.approx(12.0)


def test_how_the_last_draft_went_says_nothing_before_any_was_kept() -> None:
    (pace,) = paces(economy(table(units=10.0), 0.75))
    pace.units()
    pace.observe(step_round(1, 0, LENGTH))
    assert pace.heat == "1" and pace._chance(1) < 0.45
    pace.observe(step_round(1, 1, LENGTH))
    assert pace.heat == "2"
    pace.observe(Round(drafted=[0] * LENGTH, ends=[LENGTH], handed=[0] * LENGTH))
    assert pace.heat == "0"


def test_the_target_writes_in_one_row_until_the_next_try_may_be_made() -> None:
    one = economy(table(units=23.0, passing=1.0, fed=0.02), 0.75)
    (pace,) = paces(one)
    pace.units()
    wrote(pace)
    tried(pace, 0)
    assert pace.units() == 0
    cost = 23.0 + 1.0 + 0.02 * (1 + LENGTH)
    assert pace.alone(9999) == pytest.approx((2 * cost - FREE) / EXPLORE / LENGTH, abs=2)


def test_a_try_costs_what_the_clock_says_if_that_is_more() -> None:
    costs = table(units=8.0, passing=1.0, fed=0.02)
    one = economy(costs, 0.75)
    (pace,) = paces(one)
    costs.clock = 100.0
    pace.units()
    wrote(pace)
    assert pace.units() == 1
    costs.clock += LENGTH + 30.0  # the target's own step is in it
    tried(pace, 0)
    assert one.vain == pytest.approx(30.0) and pace.units() == 0
    one.vain, costs.clock = 0.0, 200.0
    assert pace.units() == 1
    costs.clock += 1000.0  # a pause of the machine is no price
    tried(pace, 0)
    assert one.vain == FREE
