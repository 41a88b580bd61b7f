"""The cost account of a problem alone and among others, by a clock that the tests control."""

from __future__ import annotations

from random import Random

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.costs import WATCH, WRITE
from semspec.decoding.crowd import LOOK, SHORT
from semspec.decoding.economy import TRIES, Economy
from semspec.decoding.experience import DEBT, ENOUGH, OUTLIER
from semspec.decoding.ledger import ROUGH, Ledger
from semspec.types import Answer, Context, Draft, Generate, Query, Round, Sampling
from tests.support.costs import SIZES, table

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


def closed(ledger: Ledger, tokens: float, done: Round, asked: bool = True) -> None:
    """Let a round end that has taken the time of so many plain tokens."""
    clock = ledger.economy.costs.clock
    if clock is not None:
        ledger.economy.costs.answered(clock + tokens * ledger.economy.token)
    ledger.close(done, 1.0, asked, True)


def drafted(kept: int) -> Round:
    return Round(drafted=[1] * 8, ends=[*range(1, 9)], kept=[1] * kept, written=[2])


def test_what_was_paid_for_a_round_that_was_left_is_given_back() -> None:
    one = economy(load=1)
    ledger, before = Ledger(one), one.bank
    ledger.begin()
    assert ledger.affords(0.5, True) and one.bank == before - 0.5
    ledger.over()  # its client has gone
    assert one.bank == before
    ledger.over()
    assert one.bank == before


@pytest.mark.parametrize("watches", [True, False])
def test_a_drafter_that_reads_along_has_the_pass_over_the_prompt_for_its_first_draft(
    watches: bool,
) -> None:
    """The others may as well wait until the price of a plain token is known."""
    pace = Adaptive(economy=economy(load=1), longest=8, watches=watches)
    pace.economy.costs.load = 0
    assert bool(pace.units()) is watches
    pace.observe(drafted(2) if watches else Round(handed=[1]))
    assert pace.units() == 0 and pace.alone(100) == ENOUGH and pace.resting


@pytest.mark.parametrize("watches", [True, False])
def test_a_question_before_the_first_token_costs_more_than_its_search(watches: bool) -> None:
    """It is a round of its own, and for a drafter that reads along, the prompt a pass of its own."""
    one = economy(load=1)
    one.starting = 0.8
    passes = one.writing(1) if watches else 0.0
    assert not watches or passes > 0.9
    for asked, cost in ((False, 0.0), (True, 0.8 + passes)):
        ledger = Ledger(one, watches, copies=True)
        ledger.begin()
        before = one.bank
        closed(ledger, 40, Round(handed=[1] * 20), asked)
        assert one.bank == pytest.approx(before - cost, abs=0.2)


def test_debts_are_of_a_load() -> None:
    one = economy(load=4)
    one.settle(0.5, -90.0)
    assert one.bank == -DEBT and not one.affords(-0.5)
    one.costs.load = 1
    assert one.affords(-0.5) and one.affords(0.5)
    one.costs.load = 4  # what is owed there is still owed
    assert one.bank == -DEBT and not one.affords(-0.5)


def test_what_was_paid_alone_is_given_back_there_when_another_comes() -> None:
    one = economy(load=1)
    ledger, before = Ledger(one), one.bank
    for left in (False, True):
        ledger.begin()
        assert ledger.affords(0.5, True)
        one.costs.load = 2
        if left:
            ledger.over()
        else:
            closed(ledger, 3, drafted(0))
        assert one.banks[1] == before and one.bank >= before
        one.costs.load = 1


def test_a_lookup_that_finds_nothing_is_not_asked_for_every_token_among_others() -> None:
    one = economy(load=4)
    pace = Adaptive(economy=one, longest=8, copies=True, cuts=True)
    one.crowd(0.0).state = "drafting"
    for _ in range(10):
        assert pace.units() == 8
        pace.cut(Draft([], []))
        passes(pace, 4, Round(handed=[0] * pace.alone(999)))
    assert pace.alone(999) > 1


def problem(one: Economy, watches: bool = False) -> Adaptive:
    return Adaptive(economy=one, longest=8, watches=watches)


def passes(pace: Adaptive, tokens: float, done: Round) -> None:
    clock = pace.economy.costs.clock
    assert clock is not None
    pace.economy.costs.answered(clock + tokens * pace.economy.token)
    pace.observe(done)


@pytest.mark.parametrize("watches", [False, True])
def test_where_others_are_under_way_a_problem_writes_as_they_do_and_drafts_as_they_do(
    watches: bool,
) -> None:
    one = economy(load=4)
    pace = problem(one, watches)
    if watches:  # it has the pass over the prompt for its first draft
        assert pace.units() > 0
        passes(pace, 2, drafted(0))
    # until it is known what drafts bring, it reads along
    assert pace.units() == 0 and pace.alone(999) == SHORT and not pace.resting
    passes(pace, SHORT, Round(handed=[0] * SHORT))
    one.crowd(0.0).gained = False
    assert pace.units() == 0 and pace.alone(999) == LOOK and pace.resting == watches
    passes(pace, LOOK, Round(handed=[0] * LOOK))
    one.crowd(0.0).state = "drafting"
    assert pace.units() > 0 and not pace.resting
    # none of its drafts is kept, and it goes on until that has been counted
    passes(pace, 2, drafted(0))
    assert pace.units() > 0 and pace.alone(999) == 1


def test_a_lookup_is_asked_where_all_draft_and_nowhere_else() -> None:
    one = economy(load=4)
    pace = Adaptive(economy=one, longest=8, copies=True, cuts=True)
    assert pace.units() == 0
    one.crowd(0.0).state = "drafting"
    assert pace.units() == 8


def test_rounds_of_all_problems_are_counted_but_for_those_with_a_prompt() -> None:
    one = economy(load=4)
    crowd = one.crowd(0.0)
    crowd.state, crowd.gained = "drafting", True
    paces = [problem(one) for _ in range(4)]
    for _ in range(50):
        for pace in paces:
            if pace.units():
                passes(pace, 8, drafted(0))
            else:
                row = pace.alone(999)
                passes(pace, row, Round(handed=[0] * row))
    assert crowd.gained is False and crowd.state == "writing"
    crowd.state, crowd.gained = "drafting", True
    for pace in (problem(one) for _ in range(200)):
        pace.units()
        passes(pace, 8, drafted(0))
    assert crowd.state == "drafting"


@pytest.mark.parametrize("resting", [True, False])
def test_reading_along_does_not_make_plain_tokens_look_dear(resting: bool) -> None:
    """A row takes a quarter longer with it, which is not what the target alone would take."""
    one, longer = economy(load=2), 1.0 if resting else 1.25
    for size in SIZES:
        one.costs.add("target", WATCH, 2, size, 1.25 * TOKEN * size)
    ledger = Ledger(one, watches=True)
    crowd = one.crowd(0.0)
    for _ in range(10):
        ledger.begin()
        row = Round(handed=[0] * 64, seconds={"write": 64 * one.token * longer})
        one.costs.answered(one.costs.clock + 64 * one.token * longer)
        ledger.close(row, 64.0, False, resting)
    assert crowd.plain.rows.token == pytest.approx(one.token, rel=0.01)


def test_a_trial_ends_with_the_last_few_of_a_group() -> None:
    """Three of sixteen are left, too short a time for a record of their own: they still show that drafts lose."""
    one = economy(load=16)
    for size in SIZES:
        one.costs.add("target", WRITE, 4, size, size * TOKEN / 4)
    crowd = one.crowd(0.0)
    crowd.state, crowd.gained = "trial", True
    one.costs.load = 4
    ledgers = [Ledger(one) for _ in range(3)]
    for ledger in ledgers:
        ledger.rounds = 1  # its prompt was read long ago
        ledger.begin()
    for _ in range(12):
        one.costs.answered(one.costs.clock + 2 * one.token)
        for ledger in ledgers:
            ledger.close(drafted(0), 1.0, True, True)
            ledger.begin()
    assert one.crowds.known == {16: crowd} and crowd.gained is False and crowd.state == "writing"


@pytest.mark.parametrize("whose", ["its own", "another's", "nobody's"])
def test_a_draft_that_waited_for_a_drafter_to_read_says_nothing_of_what_drafts_take(
    whose: str,
) -> None:
    one = economy(load=4)
    ledger, asked = Ledger(one), told(one)
    ledger.asleep = whose == "its own"
    ledger.begin()
    ledger.wake()
    if whose != "nobody's":  # ten plain tokens long a draft model reads what it has not seen
        query = Query("draft", Context(1, [0] * 40), Sampling(), Random(0), generate=Generate(5))
        one.costs.took([(query, Answer(tokens=[1] * 5, fed=45))], 11 * one.token, 0.0, 4)
    ledger.asked("ask", 5, 11 * one.token, 1.0)
    closed(ledger, 13, drafted(5))
    assert (told(one) != asked) == (whose == "nobody's")
    assert bool(one.experience.waking) == (whose == "its own")


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


def told(one: Economy) -> object:
    """Return what is known of the cost of asking for drafts."""
    curve = one.costs.curve("draft", "ask", 4)
    return curve and curve.told()


def alone(ledger: Ledger, tokens: int, *, writing: float, besides: float) -> float:
    """Let the target write alone in a round: each token takes ``writing`` plain ones; return what the round gained."""
    costs = ledger.economy.costs
    assert costs.clock is not None
    ledger.begin()
    write = tokens * writing * TOKEN
    costs.answered(costs.clock + write + besides * TOKEN)
    return ledger.close(Round(written=[1] * tokens, seconds={"write": write}), tokens, True, False)


@pytest.mark.parametrize("writing", [0.6, 1.0, 1.8])
def test_a_round_without_a_draft_loses_what_it_took_besides_its_tokens(writing: float) -> None:
    """A machine that has become faster or slower since the price was measured makes it neither a gain nor a loss."""
    one = economy(load=1)
    one.experience.wrote(64 * TOKEN, 64)
    ledger = Ledger(one)
    alone(ledger, 8, writing=writing, besides=0.2)
    gains = [alone(ledger, 8, writing=writing, besides=0.2) for _ in range(8)]
    assert all(-0.2 / 0.6 - 0.01 < gain < -0.2 / 1.8 + 0.01 for gain in gains)
    for _ in range(60):
        alone(ledger, 8, writing=writing, besides=0.2)
    assert one.token == pytest.approx(writing * TOKEN, rel=0.01)  # short rows tell the price too
    assert one.starting == pytest.approx(0.2 / writing, rel=0.05)


@pytest.mark.parametrize(("tries", "most"), [(0.0, ROUGH), (TRIES, OUTLIER)])
def test_an_interruption_of_a_runs_first_drafts_does_not_end_them(
    tries: float, most: float
) -> None:
    one = economy(load=1)
    one.experience.wrote(64 * TOKEN, 64)
    ledger = Ledger(one)
    alone(ledger, 8, writing=1.0, besides=0.0)
    one.warm, one.tries = True, tries
    ledger.begin()
    clock = one.costs.clock
    assert clock is not None
    one.costs.answered(clock + 50 * TOKEN)
    assert ledger.close(drafted(2), 2.0, True, False) == pytest.approx(3 - most * 2.0)


def test_one_interruption_is_not_what_every_round_without_a_draft_costs() -> None:
    one = economy(load=1)
    one.experience.wrote(64 * TOKEN, 64)
    ledger = Ledger(one)
    for _ in range(10):
        alone(ledger, 8, writing=1.0, besides=0.2)
    assert alone(ledger, 8, writing=1.0, besides=50.0) > -1
    assert one.starting < 0.3


def test_a_few_tokens_from_a_server_tell_no_price() -> None:
    """A request costs something by itself, which a long row hardly feels."""
    one = economy(load=1)
    one.costs.remote = True
    one.experience.wrote(64 * TOKEN, 64)
    ledger = Ledger(one)
    for _ in range(20):
        alone(ledger, 8, writing=2.0, besides=0.1)
    assert one.token == pytest.approx(TOKEN)
    for _ in range(40):
        alone(ledger, 16, writing=2.0, besides=0.1)
    assert one.token == pytest.approx(2 * TOKEN, rel=0.1)


def test_a_lookup_that_finds_nothing_is_asked_less_often_where_a_round_costs_more() -> None:
    strides = []
    for starting in (0.02, 0.5):
        one = economy(load=1)
        one.experience.wrote(64 * TOKEN, 64)
        one.starting = starting
        pace = Adaptive(economy=one, longest=8, copies=True, cuts=True)
        pace.net = 1.0
        assert pace.units() == 8
        pace.cut(Draft([], []))
        strides.append(pace.alone(999))
    assert strides[0] < strides[1]
