"""What a drafter is charged for, and what it learns from: its own drafts and their time, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_beside import SUFFIX, Beside
from semspec.decoding.budget_copied_steps import COPIES
from semspec.decoding.budget_steps import FREE, AdaptiveSteps
from semspec.decoding.budget_steps_beside import StepsBeside
from semspec.decoding.economy import TRIES, Economy
from semspec.decoding.experience import ENOUGH, EXPLORE
from semspec.decoding.pacing import Pacing
from semspec.drafters.lm import LanguageModel
from semspec.drafters.suffix import Suffix
from semspec.rules.lossless import Lossless
from semspec.splitters.token import TokenBoundary
from semspec.types import Draft, Room, Round, Sampling
from tests.support.costs import economy, table
from tests.support.words import Words


def steps(first: float = 0.05, **costs: float) -> Economy:
    """A model of which one draft was accepted once; steps have twenty tokens."""
    one = economy(table(passing=1.0, fed=0.1, units=0.1, **costs), first)
    one.written = one.drafted = 20.0
    one.beliefs.learn([((), True)])
    one.bank = 50.0
    return one


def step(tokens: int = 20, kept: bool = True) -> Round:
    done = Round(
        drafted=[1] * tokens, ends=[tokens], kept=[1] * tokens * kept, units_kept=int(kept)
    )
    if not kept:
        done.handed, done.handed_ends = [2] * tokens, [tokens]
    return done


# ---- whole steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AdaptiveSteps, StepsBeside])
def test_one_problem_at_a_time_tries_an_unproven_model(kind: type[AdaptiveSteps]) -> None:
    one = economy(table(passing=1.0, fed=0.1, units=0.1))
    one.written = 20.0
    first, second = (kind(economy=one, longest=1, cap=512) for _ in range(2))
    for pace in (first, second):
        pace.behind(100)
        pace.units()
    assert (first._asked, second._asked) == (1, 0)
    assert first != second and one.tester is first
    first.over()
    second.units()
    assert one.tester is second


@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_the_time_before_a_problem_is_not_that_of_its_first_draft(idle: float) -> None:
    one = economy(table(passing=1.0, fed=0.1, units=0.1))
    one.written = one.drafted = 20.0
    one.costs.answered(0.0)  # by an earlier request
    pace = AdaptiveSteps(economy=one, longest=1, cap=512)
    pace.behind(100)
    assert pace.units()
    pace.cut(Draft([1] * 20, [20]))
    one.costs.answered(idle + 30.0)
    pace.observe(step(kept=False))
    assert 0 < one.vain < FREE / 2 and not one.trial


def test_a_gate_that_closes_at_once_costs_what_asking_costs() -> None:
    """Otherwise a drafter would be asked before every step for ever."""
    one, asked = steps(0.9, asked=5.0), 0
    before = one.bank
    pace = AdaptiveSteps(economy=one, longest=1, cap=512)
    for turn in range(1000):
        pace.behind(100 + 30 * turn)
        asked += bool(units := pace.units())
        count = 1 if units else pace.alone(10)
        if units:
            pace.asked(units, 5.0)
        pace.cut(Draft(halted=True))
        ends = [30 * (i + 1) for i in range(count)]
        pace.observe(Round(handed=[0] * ends[-1], handed_ends=ends))
    assert 5 * asked < before + 200 + 2 * EXPLORE * 300_000 and asked < 500


@pytest.mark.parametrize("ahead", [False, True])
def test_a_draft_made_ahead_does_not_lose_what_was_paid_for_the_one_before(ahead: bool) -> None:
    one = steps()
    pace, before = AdaptiveSteps(economy=one, longest=1, cap=512), one.bank
    pace.behind(100)
    assert pace.units()
    draft = Draft([1] * 20, [20])
    pace.cut(draft)
    if ahead:
        pace.behind(120)
        pace.units()
    done = step()
    gain = len(done.tokens) - pace._took(done)
    pace.observe(done)
    assert one.bank == pytest.approx(before + gain)


def test_steps_lent_by_a_reference_say_nothing_of_the_model() -> None:
    one = steps()
    told = one.told() | {"curve": one.costs.told()}
    pace = StepsBeside(economy=one, longest=1, cap=512)
    pace.behind(100)
    assert pace.units() and pace.model(Draft([1] * 90, [90]), Room(900, 1, 512)) is None
    pace.asked(1, 0.01)
    pace.cut(Draft([1] * 90, [90], lent=True))
    pace.observe(step(90))
    now = one.told() | {"curve": one.costs.told()}
    assert {k for k in told if told[k] != now[k]} <= {"bank", "spent", "gained", "experience"}
    assert one.bank >= told["bank"] and now["experience"]["old"] == 90


@pytest.mark.parametrize("right", [True, False])
def test_copied_steps_do_not_depend_on_a_model_that_does_not_pay(right: bool) -> None:
    """In nine of ten steps a reference matches. Copies that fail cost what they may lose, and end."""
    one = steps(0.01, asked=5.0)
    for _ in range(50):
        one.beliefs.learn([(("before", heat, "1"), False) for heat in "012"], at_once=True)
    one.bank = 0.0
    pace, copies, drafts, turn, lost = StepsBeside(economy=one, longest=1, cap=512), 0, 0, 0, 0.0
    while turn < 300:
        pace.behind(100 + 20 * turn)
        asked, draft = pace.units(), Draft()
        matches = turn % 10 > 0
        if asked:
            found = Draft([1] * 20 * matches, [20] * matches)
            room = pace.model(found, Room(900, asked, 512))
            draft = replace(found, lent=True) if room is None else Draft([1] * 20, [20])
            pace.asked(asked, 0.01 if room is None else 5.0)
        pace.cut(draft)
        if draft.tokens:
            copies, drafts = copies + draft.lent, drafts + (not draft.lent)
            done = step(kept=draft.lent and right)
            lost += one.reading(21) * draft.lent * (not right)
            turn += 1
        else:
            count = min(pace.alone(300), 300 - turn)
            ends = [20 * (i + 1) for i in range(count)]
            done, turn = Round(handed=[2] * ends[-1], handed_ends=ends), turn + count
        pace.observe(done)
    assert drafts < 10
    assert copies == 270 if right else 0 < lost < COPIES + 10 + 2 * EXPLORE * 20 * 300


# ---- tokens --------------------------------------------------------------------------------------


def test_lengths_above_the_known_depths_are_no_error() -> None:
    pace = Adaptive(economy=economy(table(units=0.001, fed=0.001), 0.999), longest=3000)
    pace.behind(10)
    assert pace.units() > 0


@pytest.mark.parametrize(("copies", "waking"), [(False, 0.0), (True, 0.0), (False, 20.0)])
def test_what_is_expected_to_lose_much_is_tried_again_too(copies: bool, waking: float) -> None:
    """The more a try costs, the more seldom, but never no more."""
    one = economy(table(passing=7.0, fed=0.05, units=0.2, asked=1.0), 0.1)
    one.experience.waking = waking
    pace = Adaptive(economy=one, longest=4, copies=copies, cuts=copies)
    one.net = pace.net = -6.0
    tries, tokens = 0, 0
    while tokens < 100_000:
        pace.behind(100 + tokens)
        if pace.units():
            tries += 1
            draft = Draft() if copies else Draft([1], [1])
            pace.cut(draft)
            pace.net = -6.0
            done = Round(drafted=draft.tokens, ends=draft.ends, handed=[-1] * copies)
            done.written = [-1] * (not copies)
        else:
            done = Round(handed=[-1] * pace.alone(100_000 - tokens))
        pace.observe(done)
        tokens += len(done.tokens)
    assert 80 / (6 + waking) < tries < 2 * EXPLORE * 100_000 / 6


@pytest.mark.parametrize("length", [ENOUGH - 8, ENOUGH, ENOUGH + 1])
def test_short_answers_together_tell_the_price_of_a_token(length: int) -> None:
    """None of them has room for the row that tells it."""
    costs = table(passing=1.0, fed=0.01, units=0.01)
    costs.fixed = False
    one, now, drafts = economy(costs, 0.95), 0.0, 0
    costs.answered(now)
    for _ in range(50):
        pace, left = Adaptive(economy=one.opened(), longest=8), length
        while left > 0:
            pace.behind(100 + length - left)
            if units := pace.units():
                drafts += 1
                pace.asked(units, 0.01)
                tokens = list(range(units))[: left - 1]
                draft = Draft(tokens, list(range(1, len(tokens) + 1)))
                pace.cut(draft)
                done = Round(drafted=draft.tokens, ends=draft.ends, kept=draft.tokens, written=[-1])
                done.seconds["verify"] = 1.1
                now += 1.11
            else:
                done = Round(handed=[-1] * pace.alone(left))
                done.seconds["write"] = float(len(done.handed))
                now += len(done.handed)
            costs.answered(now)
            pace.observe(done)
            left -= len(done.tokens)
        pace.over()
    assert one.experience.token == pytest.approx(1.0) and drafts > 40


# ---- who shares what -----------------------------------------------------------------------------


def pacing(drafter: Any) -> Pacing:
    costs = table(passing=1.0, fed=0.1, units=0.2)
    costs.fixed = False
    return Pacing.adaptive({"draft": drafter}, 1, costs, refers=True)


def of(one: Pacing, drafter: Any, refers: bool = False) -> Any:
    session = drafter.open(Words().kit(boundary=TokenBoundary))
    pair = drafter, Lossless()
    return one.of_tokens("draft", pair, session, Sampling(0.6), 40, chain=32, refers=refers)


def test_copies_from_a_reference_have_an_account_beside_the_model_s() -> None:
    model = LanguageModel()
    one = pacing(model)
    own, beside = of(one, model), of(one, model, refers=True)
    assert type(own) is Adaptive and type(beside) is Beside
    assert beside.copying.economy is one.economies["draft" + SUFFIX]
    assert of(one, model, refers=True).copying.economy is beside.copying.economy
    assert beside.copying.economy.beliefs is not own.economy.beliefs
    assert (
        type(of(pacing(Suffix()), Suffix(), refers=True)) is Adaptive
    )  # a lookup's drafts are copies


def test_another_rule_learns_for_itself_but_shares_prices_and_the_load() -> None:
    model = LanguageModel()
    one = pacing(model)
    for _ in range(50):
        one.economies["draft"].beliefs.learn([(("before", "1", "0"), False)])
    one.economies["draft"].tries, one.economies["draft"].bank = TRIES, -20.0
    other = one.apart()
    mine, theirs = one.economies["draft"], other.economies["draft"]
    assert not theirs.beliefs.counts and not theirs.tries and theirs.bank == 0
    assert theirs.beliefs.first == mine.beliefs.first and theirs.model == mine.model
    for shared in ("costs", "experience", "crowds"):
        assert getattr(theirs, shared) is getattr(mine, shared)
    mine.costs.fixed = True
    assert one.apart().economies["draft"] is mine
