"""A drafter that reads along sits out what it cannot afford, and comes back in a long answer once it can."""

from __future__ import annotations

import pytest

from semspec.decoding.budget import SEVERAL, Adaptive
from semspec.decoding.budget_copied_steps import CopiedSteps
from semspec.decoding.costs import WATCH
from semspec.decoding.economy import ABSENT, ALLOWANCE, FOREVER, LOOK, TRIES, Economy
from semspec.decoding.experience import EXPLORE
from semspec.drafters.medusa import MedusaSession
from semspec.types import Draft, Round
from tests.support.costs import SIZES, economy, table

LONG = 20_000  # tokens of an answer
ALONG = 1.05  # plain tokens that one takes while the drafter reads along
CHEAP, DEAR = (
    0.0005,
    0.05,
)  # plain tokens that reading one more token costs: an accelerator's, a processor's


def read_along(fed: float, chance: float = 0.1) -> Economy:
    """A target that writes a twentieth more slowly while a drafter reads along, and drafts that have failed so far."""
    costs = table(passing=1.0, fed=fed, units=0.1)
    costs.fixed = False
    for size in SIZES:
        costs.add("target", WATCH, 1, size, ALONG * size)
    costs.fixed = True
    one = economy(costs, chance)
    one.tries, one.bank = TRIES, 0.0
    return one


def answered(fed: float, kept: bool) -> tuple[int, float, int]:
    """Write a long answer by the clock; return how many drafts were made, the time over plain tokens', and how often the drafter came back."""
    one = read_along(fed)
    pace, costs = Adaptive(economy=one, longest=6, watches=True), one.costs
    costs.fixed = False
    costs.answered(0.0)
    tokens, missed, drafts, returns, now = 0, 0, 0, 0, 0.0
    while tokens < LONG:
        pace.behind(100 + tokens)
        if units := pace.units():
            asking = 0.1 * units + (1.0 + fed * missed) * (missed > 0)
            pace.asked(units, asking)
            draft = Draft(list(range(units)), list(range(1, units + 1)))
            pace.cut(draft)
            done = Round(drafted=draft.tokens, ends=draft.ends, units_kept=units * kept)
            done.kept, done.written = draft.tokens * kept, [-1]
            done.seconds["verify"] = 1.0 + fed * (1 + units)
            now += asking + done.seconds["verify"]
            drafts, returns, missed = drafts + 1, returns + (missed > 0), 0
        else:
            row = pace.alone(LONG - tokens)
            missed += row * pace.resting
            done = Round(handed=[-1] * row)
            done.seconds["write"] = row * (1.0 if pace.resting else ALONG)
            now += done.seconds["write"]
        tokens += len(done.tokens)
        costs.answered(now)
        pace.observe(done)
    return drafts, now - tokens, returns


def test_a_head_that_fails_comes_back_as_often_as_can_be_afforded() -> None:
    drafts, lost, returns = answered(CHEAP, kept=False)
    assert returns >= 5 and drafts >= 2 * returns
    assert 0.2 * EXPLORE * LONG < lost < ALLOWANCE + 2 * EXPLORE * LONG


def test_a_head_that_has_become_good_is_found_out_in_a_long_answer() -> None:
    _, lost, returns = answered(CHEAP, kept=True)
    assert returns >= 1 and lost < -0.4 * LONG


def test_where_catching_up_is_dear_a_head_sits_out_to_the_end() -> None:
    head = Adaptive(economy=read_along(DEAR), longest=6, watches=True)
    head.behind(100)
    assert head.units() == 0 and head.resting and head.alone(FOREVER) == FOREVER
    assert answered(DEAR, kept=True)[0] == 0


@pytest.mark.parametrize("fed", [CHEAP, DEAR])
def test_the_return_is_the_first_that_can_be_afforded(fed: float) -> None:
    """Compared with every length that is tried, in order."""
    one = read_along(fed)
    for loss in (0.5, 3.0, 40.0):
        lengths = [ABSENT << i for i in range(22)]
        need = {n: loss + 1.0 + fed * (n + 1) for n in lengths}
        fitting = [n for n in lengths if one.explore * n >= need[n]]
        assert one.absence(loss, lambda n: one.reading(n + 1)) == (fitting or [FOREVER])[0]
        if fitting:
            assert one.wanted == pytest.approx(need[fitting[0]])


def test_the_allowance_grows_until_the_return_can_be_paid() -> None:
    one = read_along(CHEAP)
    head = Adaptive(economy=one, longest=6, watches=True)
    head.behind(100)
    assert not head.units()
    row = head.alone(LONG)
    assert ABSENT <= row < LONG
    head.observe(Round(handed=[-1] * row))
    assert one.bank > ALLOWANCE + 1 and one.bank >= SEVERAL
    head.behind(100 + row)
    assert head.units() > 0


def test_under_a_load_that_may_change_the_decision_is_soon_made_anew() -> None:
    one = read_along(DEAR)
    one.costs.load = 1
    assert one.absence(3.0, lambda n: one.reading(n + 1)) == LOOK


@pytest.mark.parametrize("load", [0, 1])
@pytest.mark.parametrize(("fed", "prompt"), [(DEAR, 2000), (CHEAP, 64_000)])
def test_a_head_that_has_not_read_the_prompt_pays_for_it_when_it_returns(
    load: int, fed: float, prompt: int
) -> None:
    """Whatever it lost: the allowance covers what it reads then, also where a decision is made anew every few tokens."""
    one = read_along(fed)
    one.costs.load, one.bank = load, 2.0
    head, tokens = Adaptive(economy=one, longest=6, watches=True), 0
    head.behind(prompt)
    while not head.units() and tokens < 20 * LONG:
        row = head.alone(LONG)
        assert head.resting
        head.observe(Round(handed=[-1] * row))
        tokens += row
        head.behind(prompt + tokens)
    if tokens < 20 * LONG:
        assert one.explore * tokens + 2.0 > one.reading(prompt + tokens)
    else:
        assert fed == DEAR


def test_medusa_has_missed_only_the_newest_state() -> None:
    """It drafts from the last state but one, so it comes back soon on any machine."""
    assert not MedusaSession.recalls
    head = Adaptive(economy=read_along(DEAR), longest=6, watches=True, recalls=False)
    head.behind(8000)
    assert head.units() == 0 and head.alone(FOREVER) <= 4096


@pytest.mark.parametrize(("fed", "comes_back"), [(CHEAP, True), (DEAR, False)])
def test_a_lookup_of_steps_that_reads_along_comes_back_too(fed: float, comes_back: bool) -> None:
    one = read_along(fed)
    one.net = -2.0
    pace, tokens, asked = CopiedSteps(economy=one, longest=1, cap=512, watches=True), 0, 0
    while tokens < LONG:
        pace.behind(100 + tokens)
        asked += pace.units()
        count = pace.alone((LONG - tokens) // 10)
        pace.cut(Draft([]))
        ends = [10 * (i + 1) for i in range(count)]
        pace.observe(Round(handed=[0] * 10 * count, handed_ends=ends))
        tokens += 10 * count
    assert (asked > 3) is comes_back and (asked == 0) is not comes_back
