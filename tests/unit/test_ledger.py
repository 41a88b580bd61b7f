"""What drafts are charged where others are under way: the time that they take among them, by a clock that the tests turn."""

from __future__ import annotations

from random import Random

import pytest

from semspec.decoding.economy import ALLOWANCE, DEBT, EXPLORE, TRIAL, Economy
from semspec.decoding.ledger import Ledger
from semspec.types import Answer, Context, Generate, Query, Round, Sampling
from tests.support.costs import table

TOKEN = 0.03  # seconds of a plain token


def economy(load: int, fixed: bool = False) -> Economy:
    """Return the state of a server with so many answers under way."""
    costs = table(passing=1.0, fed=0.05, units=0.05, together=max(load, 1))
    for curve in costs.curves.values():
        for point in curve.points.values():
            point.seconds *= TOKEN
    costs.load, costs.fixed = load, fixed
    costs.answered(0.0)
    return Economy(costs)


def passed(ledger: Ledger, tokens: float, done: Round, loss: float = 0.0) -> bool:
    """Let a round take the time of so many plain tokens; return whether its draft was afforded."""
    ledger.begin()
    drafted = not done.drafted or ledger.affords(loss, True)
    closed(ledger, tokens, done, bool(done.drafted))
    return drafted


def closed(ledger: Ledger, tokens: float, done: Round, asked: bool = True) -> None:
    """Let a round end that has taken the time of so many plain tokens."""
    clock = ledger.economy.costs.clock
    if clock is not None:
        ledger.economy.costs.answered(clock + tokens * ledger.economy.token)
    ledger.close(done, 1.0, asked, True)


def plain() -> Round:
    return Round(handed=[0] * 16)


def tried() -> Round:
    return Round(drafted=[1], ends=[1], written=[2])


def test_a_try_is_charged_what_it_waits_for_others() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    before = one.bank
    assert passed(ledger, 5, tried(), loss=0.5)  # a token came of it
    assert before - 4.1 < one.bank < before - 3.9
    assert passed(ledger, 90, tried(), loss=0.5)
    assert one.bank == -DEBT  # no more is owed than one try may lose
    assert not passed(ledger, 5, tried(), loss=0.5)


def test_a_try_is_charged_what_the_others_wait_for_its_draft() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    before = one.bank
    ledger.begin()
    assert ledger.affords(0.5, True)
    assert one.bank == before - TRIAL  # until it is known: another try would not be afforded now
    assert not Ledger(one).affords(0.5, True)
    ledger.asked("ask", 1, 2 * one.token, 0.05)
    closed(ledger, 5, tried())
    # four of its own, and two for each of the three others
    assert before - 10.1 < one.bank < before - 9.9


def test_a_draft_among_those_who_write_says_nothing_of_drafts_in_each_place() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    before = one.bank
    one.costs.mixed = True
    assert passed(ledger, 20, tried())
    assert one.bank >= before
    one.costs.mixed = False
    assert passed(ledger, 20, tried())
    assert one.bank < before - 18


def test_a_question_that_finds_nothing_costs_what_it_took_and_not_the_deposit() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    before = one.bank
    ledger.begin()
    assert ledger.affords(0.01, False)
    ledger.asked("ask", 1, 0.1 * one.token, 0.1)
    closed(ledger, 20, plain())
    earned = EXPLORE * 16
    assert one.bank == pytest.approx(
        before - 4 * 0.1 + earned
    )  # a tenth of a token, for each of four


@pytest.mark.parametrize("left", [False, True])
def test_what_was_paid_under_one_load_is_settled_there(left: bool) -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    ledger.begin()
    assert ledger.affords(0.5, True)
    one.costs.load = 2  # others have ended meanwhile
    before = one.bank
    if left:
        ledger.over()
    else:
        ledger.close(tried(), 1.0, True, True)
    assert one.bank == pytest.approx(before) and one.banks[4] > 7


def test_a_try_that_is_left_before_its_end_is_given_back() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    before = one.bank
    ledger.begin()
    assert ledger.affords(0.5, True) and one.bank == before - TRIAL
    ledger.over()  # its client has gone
    assert one.bank == before
    ledger.over()
    assert one.bank == before


@pytest.mark.parametrize("load", [1, 4])
def test_a_drafter_that_was_slow_once_is_woken_again(load: int) -> None:
    one = economy(load)
    one.experience.woke(200.0)  # the machine has paused in its first draft
    assert not Ledger(one).affords(-1.5, True)
    for _ in range(1000):
        one.went(50.0, 50)
    again = Ledger(one)
    assert again.affords(-1.5, True)
    one.experience.woke(4.0)
    assert one.experience.waking == 102


def test_a_recorded_table_does_not_hear_of_the_clock() -> None:
    one = economy(load=0, fixed=True)
    own = one.opened()
    ledger = Ledger(own)
    ledger.begin()
    assert ledger.affords(0.5, True)
    ledger.asked("ask", 1, 1000.0, 0.05)
    assert own.experience.waking == 0 and own.experience is not one.experience


def test_drafts_that_gain_among_others_earn_more() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    kept = Round(drafted=[1] * 5, ends=[1, 2, 3, 4, 5], kept=[1] * 5, written=[2])
    assert passed(ledger, 2, kept)
    assert one.bank > ALLOWANCE + 3.9


def test_what_is_expected_to_lose_is_not_tried_while_the_prompt_is_read() -> None:
    one = economy(load=4)
    assert not Ledger(one).affords(0.5, True) and Ledger(one).affords(-0.5, True)
    assert Ledger(economy(load=4, fixed=True)).affords(0.5, True)  # no clock says what it takes


def test_debts_are_of_a_load() -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    passed(ledger, 90, tried(), loss=0.5)
    assert one.bank == -DEBT and not ledger.affords(-0.5, True)
    one.costs.load = 1
    assert ledger.affords(-0.5, True) and ledger.affords(0.5, True)
    one.costs.load = 4  # what is owed there is still owed
    assert one.bank == -DEBT and not ledger.affords(-0.5, True)


@pytest.mark.parametrize("whose", ["its own", "another's", "nobody's"])
def test_a_drafter_that_wakes_is_paid_back_by_what_it_drafts_later(whose: str) -> None:
    one = economy(load=4)
    ledger = Ledger(one)
    passed(ledger, 16, plain())
    ledger.asleep, before, asked = whose == "its own", one.bank, told(one)
    ledger.begin()
    assert ledger.affords(-2.0, True)
    if whose != "nobody's":  # ten plain tokens long a draft model reads what it has not seen
        query = Query("draft", Context(1, [0] * 40), Sampling(), Random(0), generate=Generate(5))
        one.costs.took([(query, Answer(tokens=[1] * 5, fed=45))], 11 * one.token, 0.0, 4)
    ledger.asked("ask", 5, 11 * one.token, 1.0)
    now = one.costs.clock
    assert now is not None
    one.costs.answered(now + 13 * one.token)
    kept = Round(drafted=[1] * 5, ends=[1, 2, 3, 4, 5], kept=[1] * 5, written=[2])
    ledger.close(kept, 3.0, True, True)
    gained = one.bank - before
    if whose == "nobody's":  # then that is what a draft takes
        assert -7.1 < gained < -6.9 and told(one) != asked
    else:
        assert 2.9 < gained < 3.1 and told(one) == asked
    assert bool(one.experience.waking) == (whose == "its own")


def told(one: Economy) -> object:
    """Return what is known of the cost of asking for drafts."""
    curve = one.costs.curve("draft", "ask", 4)
    return curve and curve.told()
