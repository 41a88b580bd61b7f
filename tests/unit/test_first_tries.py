"""First tries: chains before trees, and a promising model a few times before it is given up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from semspec.decoding.budget import APART, PLACES, PROBE, SEVERAL, WAIT, Adaptive
from semspec.decoding.budget_prospects import DEEP
from semspec.decoding.costs import CHAIN, WATCH, Curve
from semspec.decoding.economy import EARNED, HOPEFUL, TRIES, Economy
from semspec.decoding.experience import EXPLORE
from semspec.types import Round
from tests.support.costs import SIZES, economy, table
from tests.unit.test_pace import HEATS, drafted, went

# ---- a tree, or a chain in its place ---------------------------------------------------------------


def shapes(right: int, rounds: int, **costs: Any) -> tuple[list[bool], Adaptive]:
    """Let rounds pass in which so many tokens of a chain are right, and all levels of a tree: True where a chain was asked for."""
    one, asked = economy(table(**costs)), list[bool]()
    for size in SIZES:
        one.costs.curves.setdefault(("draft", CHAIN, 1), Curve()).add(size, 0.05 * size)
    pace = Adaptive(economy=one, longest=4, longest_chain=12, cuts=True, exact=True)
    for _ in range(rounds):
        units = pace.units()
        asked.append(pace.chain)
        if pace.chain:
            went(pace, drafted(pace, list(range(units))), min(right, units))
            continue
        tokens, parents = list(range(2 * units)), [(node & ~1) - 1 for node in range(2 * units)]
        draft = drafted(pace, tokens, parents, likely=[0.5] * len(tokens))
        done = Round(drafted=draft.tokens, ends=draft.ends, parents=draft.parents)
        done.kept, done.written = [node for node in draft.tokens if node % 2], [-1]
        pace.observe(done)
    return asked, pace


def test_a_tree_that_cannot_be_better_than_its_chain_is_never_drafted() -> None:
    """Of a chain that keeps 12 tokens of 12 a tree of four levels can be no match, whatever it brings."""
    asked, _ = shapes(12, 60, passing=1.0, fed=0.02, units=0.1, tree=0.3)
    assert all(asked)


def test_a_tree_is_tried_once_its_chain_is_known_and_stays_where_it_brings_more() -> None:
    asked, pace = shapes(1, 120, passing=1.0, fed=0.02, units=0.1, tree=0.1)
    first = asked.index(False)
    assert first > 3 and all(asked[:first])  # the chain came first
    assert not any(asked[-20:])
    assert pace.economy.nodes == pytest.approx(2.0, abs=0.5)


def test_the_size_of_trees_is_known_from_the_first_one_on() -> None:
    one = economy(table())
    assert one.level > 1  # more than a chain's
    for number, nodes in enumerate([6.0, 4.0, 2.0], start=1):
        one.sent(nodes)
        assert one.trees == number
    assert one.level == pytest.approx(4.0)


# ---- the first drafts of a model -------------------------------------------------------------------


def run_of_trees(seed: int, failing: int, tokens: int = 400, likely: float = 0.4) -> list[int]:
    """Draft trees for a text that is hard for so many rounds, and whose drafts are right from there on; return what was sent of each draft."""
    rng, costs = random.Random(seed), table(passing=1.2, fed=0.1, units=0.2)
    for size in SIZES:  # what it reads along is not for nothing
        costs.curves.setdefault(("target", WATCH, 1), Curve()).add(size, 1.15 * size)
    one = economy(costs, 0.75)
    pace = Adaptive(economy=one, longest=6, cuts=True, exact=True, watches=True)
    sent, written = list[int](), 0
    while written < tokens:
        units = pace.units()
        right = len(sent) >= failing and rng.random() < 0.9
        if not units:
            row = pace.alone(tokens)
            pace.observe(Round(handed=[-1] * row))
            written += row
            continue
        chances = [rng.uniform(0.5, 1.5) * likely for _ in range(units)]
        draft = drafted(pace, list(range(units)), list(range(-1, units - 1)), likely=chances)
        sent.append(len(draft.tokens))
        done = Round(drafted=draft.tokens, ends=draft.ends, parents=draft.parents)
        if draft.tokens:
            done.kept, done.written = (draft.tokens if right else []), [-1]
        else:
            row = pace.alone(tokens)
            done.handed = [*range(units), *[-1] * row][:row] if right else [-1] * row
        pace.observe(done)
        written += len(done.tokens)
    return sent


@pytest.mark.parametrize("seed", range(8))
def test_a_promising_model_is_given_up_only_after_real_tries(seed: int) -> None:
    """A few drafts that failed, or were not worth a pass, once were the last ones of a whole run."""
    sent = run_of_trees(seed, failing=6, likely=0.3)
    assert sum(map(bool, sent)) >= TRIES


@pytest.mark.parametrize("seed", range(4))
def test_a_promising_model_that_disappoints_has_few_tries(seed: int) -> None:
    sent = run_of_trees(seed, failing=1000, tokens=2000)
    assert TRIES <= sum(map(bool, sent)) <= TRIES + 2


def test_a_model_that_never_looked_promising_is_not_tried() -> None:
    pace = Adaptive(economy=economy(table(units=2.0), 0.5), longest=6)
    pace.economy.bank = 0.0
    for _ in range(3):
        assert not pace.units()
        pace.observe(Round(handed=[-1] * pace.alone(40)))
    assert not pace.economy.promising


def test_a_draft_that_saved_time_is_followed_by_another_even_in_debt() -> None:
    one = economy(table(units=0.1), 0.4)
    pace = Adaptive(economy=one, longest=6)
    pace.units()
    went(pace, drafted(pace, list(range(6))), 0)
    one.bank = -6.0
    assert not pace.units()  # it cannot be afforded
    pace.observe(Round(handed=[-1]))
    one.bank = 4.0
    assert pace.units()
    went(pace, drafted(pace, list(range(6))), 5)
    one.bank = -6.0
    assert pace.units()  # the last one paid
    went(pace, drafted(pace, list(range(6))), 0)
    one.bank = -6.0
    assert not pace.units()


def failing(pace: Adaptive, drafts: int) -> list[int]:
    """Let drafts of six tokens fail; return the tokens that were written before each."""
    waited, alone = list[int](), 0
    while len(waited) < drafts:
        pace.economy.bank = 50.0  # as after many gains
        if units := pace.units():
            assert units >= PROBE
            waited.append(alone)
            alone = 0
            went(pace, drafted(pace, list(range(units))), 0)
        else:
            row = pace.alone(1000)
            pace.observe(Round(handed=[-1] * row))
            alone += row
    return waited


def test_first_tries_of_a_model_are_spread_over_the_text_and_are_long_enough_to_tell() -> None:
    one = economy(table(passing=1.0, fed=0.1, units=0.1), 0.9)
    pace = Adaptive(economy=one, longest=6)
    assert failing(pace, 6) == [0, 0, WAIT, 0, WAIT, 0]


def test_the_more_drafts_fail_in_a_row_the_longer_the_next_one_waits() -> None:
    one = economy(table(passing=1.0, fed=0.1, units=0.1), 0.9)
    one.tries = TRIES
    for _ in range(100):  # a model whose next token was wrong after each failure
        one.beliefs.learn([(("before", DEEP[0], "0"), False)])
    pace = Adaptive(economy=one, longest=6)
    pace._failed = 1
    waits = list[int]()
    for _ in range(6):
        one.bank = 50.0
        while not pace.units():
            waits.append(pace.alone(1000))
            pace.observe(Round(handed=[-1] * waits[-1]))
            one.bank = 50.0
        went(pace, drafted(pace, [1, 2]), 0)
    assert waits == [4, 8, 16, 16, 16]


def lost() -> Economy:
    """A model whose drafts have all failed, after its first tries."""
    one = economy(table(passing=1.0, fed=0.1, units=0.1), 0.9)
    one.costs.fixed, one.tries = False, TRIES
    for _ in range(100):
        for heat in HEATS:
            one.beliefs.learn([(("before", DEEP[0], heat), False)])
    return one


def test_a_model_that_lost_is_tried_at_other_places_than_the_beginnings_of_answers() -> None:
    """Which are the hardest to draft: tries at beginnings alone say too little good of a model."""
    one, places = lost(), list[int]()
    for _ in range(2 * PLACES):
        pace, alone = Adaptive(economy=one.opened(), longest=6), 0
        one.bank = 20.0
        while not pace.units():
            row = pace.alone(1000)
            pace.observe(Round(handed=[-1] * row))
            alone += row
        places.append(alone)
        went(pace, drafted(pace, [1, 2]), 0)
    assert sorted(places) == sorted([0, APART, 2 * APART, 3 * APART] * 2)
    assert len(set(places[:PLACES])) == PLACES


def test_once_drafts_have_paid_off_no_place_is_waited_for() -> None:
    one = lost()
    one.bank = EARNED
    for _ in range(PLACES):
        assert Adaptive(economy=one.opened(), longest=6).units()


def test_a_head_drafts_in_the_first_round_or_not_at_all() -> None:
    """Later it would have to read the prompt again. It is tried again when enough is saved up for several tries."""
    one = lost()
    for bank, drafts in ((5.0, False), (SEVERAL, False), (SEVERAL + 4.0, True)):
        one.bank = bank
        head = Adaptive(economy=one.opened(), longest=6, watches=True)
        assert bool(head.units()) == drafts
        if not drafts:
            assert head.resting and head.alone(1000) == 1000


def test_the_first_tries_of_a_head_begin_with_each_answer() -> None:
    one = lost()
    one.tries, one.promising, one.bank = 4.0, True, -3.0
    head = Adaptive(economy=one.opened(), longest=6, watches=True)
    assert head.units() == PROBE
    model = Adaptive(economy=one.opened(), longest=6)
    assert not model.units()


def test_the_first_draft_of_an_answer_is_no_measure_of_the_others() -> None:
    one = economy(table(passing=1.0, fed=0.1, units=0.1), 0.5)
    for _ in range(100):  # beginnings fail, what follows a draft kept in part does not
        one.beliefs.learn([(("before", DEEP[0], "new"), False)])
        one.beliefs.learn([(("before", DEEP[0], "1"), True)])
    pace = Adaptive(economy=one, longest=6)
    first = pace._chance(1, chain=False)
    pace.heat = "1"
    assert first < 0.1 < 0.9 < pace._chance(1, chain=False)


def test_drafts_of_a_promising_model_may_cost_more() -> None:
    pauses = list[int]()
    for promising in (False, True):
        one = economy(table(), 0.9)
        one.promising, one.bank = promising, 0.0
        pauses.append(one.pause(3.0))
    assert pauses == [int(3 / EXPLORE), int(3 / EXPLORE / HOPEFUL)]
