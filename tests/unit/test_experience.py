"""Measured costs of drafting, by a clock that the tests control, against the promises of a cost table."""

from __future__ import annotations

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.economy import ALLOWANCE, LEARNING, Economy
from semspec.decoding.experience import ENOUGH, EXPLORE, LEAST, MOST, Experience
from semspec.types import Draft, Round
from tests.support.costs import economy, table

TOKEN = 0.03  # seconds that the target really takes for a token


def promising(clock: bool) -> Economy:
    """A table by which drafts of eight tokens, of which two are kept, gain a third."""
    costs = table(passing=1.0, fed=0.05, units=0.05)
    for curve in costs.curves.values():
        for point in curve.points.values():
            point.seconds *= TOKEN
    costs.fixed = not clock  # a recorded table: there is no clock then
    costs.answered(0.0)
    return economy(costs, 0.6)


def written(one: Economy, dearer: float, tokens: int, kept: int = 2) -> float:
    """Write so many tokens, in problems of 200; return the seconds, of which a drafted round takes ``dearer`` as many."""
    now, total = 0.0, 0

    def pass_on(seconds: float) -> None:
        nonlocal now
        now += seconds
        if one.costs.clock is not None:
            one.costs.answered(now)

    while total < tokens:
        pace, left, prompt = Adaptive(economy=one, longest=8), 200, 10 * TOKEN
        while left > 0:
            if units := pace.units():
                draft = Draft([1] * units, list(range(1, units + 1)))
                draft.seconds = dearer * 0.05 * units * TOKEN
                pace.asked(units, draft.seconds)
                pace.cut(draft)
                reading = dearer * TOKEN * (1 + 0.05 * (1 + len(draft.tokens)))
                pass_on(prompt + draft.seconds + reading)
                done = Round(drafted=draft.tokens, ends=draft.ends, draft_seconds=draft.seconds)
                done.kept, done.written = draft.tokens[: min(kept, units)], [2]
            else:
                alone = pace.alone(left)
                pass_on(prompt + alone * TOKEN)
                done = Round(handed=[0] * alone, seconds={"write": prompt + alone * TOKEN})
            prompt = 0.0
            pace.observe(done)
            left -= len(done.tokens)
        total += 200 - left
        now -= 10 * TOKEN  # the prompt is read in any case
    return now


@pytest.mark.parametrize(("dearer", "kept"), [(2.0, 1), (3.0, 2)])
def test_drafts_that_cost_more_than_the_table_says_lose_no_more_than_is_allowed(
    dearer: float, kept: int
) -> None:
    tokens = 20_000
    seconds = written(promising(clock=True), dearer, tokens, kept)
    allowed = max(ALLOWANCE, LEARNING / TOKEN) + EXPLORE * tokens
    assert seconds / TOKEN < tokens + 1.2 * allowed
    # by predictions alone they would have been made all the time
    assert written(promising(clock=False), dearer, tokens, kept) / TOKEN > 1.1 * tokens


def test_drafts_that_pay_are_made_all_the_time() -> None:
    tokens = 20_000
    seconds = written(promising(clock=True), 1.0, tokens, kept=4)
    # a draft that keeps four, at its best length, and hardly ever a token without one
    assert seconds / TOKEN < 0.5 * tokens


def test_a_machine_that_becomes_slower_makes_no_draft_a_loss() -> None:
    """All takes twice as long from one moment on: drafts still pay, and are still made."""
    one = promising(clock=True)
    written(one, 1.0, 2_000, kept=4)
    for curve in one.costs.curves.values():
        for point in curve.points.values():
            point.seconds /= 2
    one.experience.seconds /= 2
    seconds = written(one, 1.0, 20_000, kept=4)
    assert seconds / TOKEN < 0.6 * 20_000


def test_a_price_needs_a_row_of_tokens_and_survives_an_interruption() -> None:
    learned = Experience()
    learned.wrote(1.0, ENOUGH - 1)
    assert learned.token == 0
    for _ in range(5):
        learned.wrote(ENOUGH * TOKEN, ENOUGH)
    assert learned.token == pytest.approx(TOKEN)
    learned.wrote(100.0, ENOUGH)
    assert learned.token < 1.5 * TOKEN


def test_the_factor_is_what_rounds_took_of_what_was_predicted_within_bounds() -> None:
    learned = Experience()
    assert learned.factor == 1
    learned.drafted(4.0, 2.0)
    assert 1 < learned.factor < 1.3  # one round says little
    for _ in range(400):
        learned.drafted(4.0, 2.0)
    assert learned.factor == pytest.approx(2.0, rel=0.2)
    for _ in range(400):
        learned.drafted(40.0, 2.0)
    assert learned.factor == MOST
    for _ in range(2000):
        learned.drafted(0.1, 2.0)
    assert learned.factor == LEAST


def test_what_was_learned_comes_back_from_a_file() -> None:
    learned = Experience()
    learned.wrote(1.0, 40)
    learned.drafted(3.0, 2.0)
    learned.woke(7.0)
    again = Experience.of(learned.told())
    assert again == learned
    with pytest.raises(ValueError, match="no sums"):
        Experience.of({**learned.told(), "real": float("nan")})


def test_a_drafter_that_never_finds_anything_is_still_asked_now_and_then() -> None:
    one, now, asked, tokens = promising(clock=True), 0.0, 0, 0
    for _ in range(20):
        pace = Adaptive(economy=one, longest=8, copies=True, cuts=True)
        for _ in range(40):
            looking = TOKEN / 2 if pace.units() else 0.0
            if looking:
                asked += 1
                pace.asked(8, looking)
                pace.cut(Draft())  # it has found nothing
            alone = pace.alone(1000)
            tokens += alone
            now += looking + alone * TOKEN  # the engine stamps nothing
            one.costs.answered(now)
            pace.observe(Round(handed=[0] * alone))
    assert 2 < 0.5 * asked < 2 * (ALLOWANCE + EXPLORE * tokens)
    one.looked(False, 1 << 30)
    assert one.found > 0
