"""How much to draft: lengths, nodes and pauses, compared with brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, chain, combinations, pairwise
from operator import mul
from typing import Any

import pytest

from semspec.decoding.beliefs import MEMORY, Beliefs, deep, likely
from semspec.decoding.budget import PROBE, SHADOWED, Adaptive
from semspec.decoding.budget_beside import Beside, Copies, Lookups
from semspec.decoding.budget_copied_steps import COPIES, CopiedSteps
from semspec.decoding.budget_steps import AdaptiveSteps
from semspec.decoding.costs import CHAIN, WATCH, Costs, Curve
from semspec.decoding.economy import ALLOWANCE, FOREVER, TREES, TRIES, Economy
from semspec.decoding.experience import EXPLORE
from semspec.decoding.pace import Steady
from semspec.types import Draft, Room, Round
from tests.support.costs import SIZES, economy, table


def drafted(
    pace: Adaptive, tokens: list[int], parents: list[int] | None = None, **more: Any
) -> Draft:
    draft = Draft(list(tokens), list(range(1, len(tokens) + 1)), parents=parents, **more)
    pace.cut(draft)
    return draft


def went(pace: Adaptive, draft: Draft, kept: int, written: int = 1) -> None:
    """A round of a token rule that keeps so many of a chain and writes one token that was not drafted."""
    done = Round(drafted=draft.tokens, ends=draft.ends, parents=draft.parents, units_kept=kept)
    done.kept, done.written = draft.tokens[:kept], [-1] * written
    pace.observe(done)


# ---- lengths of drafts that a model writes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("chance", "units", "passing", "fed"),
    [(0.95, 0.2, 1.0, 0.05), (0.6, 0.1, 1.0, 0.1), (0.8, 0.5, 1.0, 0.2), (0.9, 0.05, 3.0, 0.0)],
)
def test_the_length_is_the_one_with_the_best_rate(
    chance: float, units: float, passing: float, fed: float
) -> None:
    costs = table(passing=passing, fed=fed, units=units)
    pace = Adaptive(economy=economy(costs, chance), longest=16)
    rates = {
        n: sum(chance**i for i in range(n + 1)) / (units * n + passing + fed * (n + 1))
        for n in range(1, 17)
    }
    best = max(rates, key=lambda n: rates[n])
    if rates[best] > 1:
        assert abs(pace.units() - best) <= (best > 4) and rates[pace.units()] > 0.99 * rates[best]
    else:
        assert pace.units() == best  # an allowance pays for the first ones
        pace.economy.bank = 0.0
        assert pace.units() == 0


def test_lengths_follow_what_is_kept_and_what_things_cost() -> None:
    def settled(kept: int, **costs: float) -> int:
        pace = Adaptive(economy=economy(table(**costs)), longest=16)
        for _ in range(200):
            if units := pace.units():
                went(pace, drafted(pace, list(range(units))), min(kept, units))
            else:
                pace.observe(Round(handed=[0] * pace.alone(1000)))
        pace.economy.bank = 0.0
        return pace.units()

    assert settled(16, units=0.2) == 16
    assert settled(3, units=0.2, fed=0.05) in (3, 4)
    assert settled(0, units=0.2) == 0
    assert settled(16, units=2.0) == 0  # a draft model slower than the target


def test_a_useless_model_costs_no_more_than_what_may_be_lost() -> None:
    pace, rng = Adaptive(economy=economy(table(units=0.5)), longest=16), random.Random(0)
    tokens = seconds = asked = 0.0
    while tokens < 20_000:
        if units := pace.units():
            asked += 1
            seconds += 0.5 * units + 1 + 0.1 * (units + 1)
            went(pace, drafted(pace, [1] * units), int(rng.random() < 0.05))
            tokens += 1
        else:
            alone = pace.alone(1000)
            pace.observe(Round(handed=[0] * alone))
            tokens, seconds = tokens + alone, seconds + alone
    assert seconds < (1 + 1.5 * EXPLORE) * tokens + 2 * ALLOWANCE
    assert asked > 50  # and it is still tried


def test_the_same_model_decides_for_many_problems_at_a_time() -> None:
    """Where sixteen problems share a pass of a cost that grows with it, longer drafts are not worth it."""
    lengths = []
    for together in (1, 4, 16, 64):
        costs = table(units=0.05, passing=1.0, fed=0.02)
        one = economy(costs, 0.8)
        one.together = together
        # written tokens of many problems cost as passes do, drafts are made by a model that is hardly felt
        lengths.append(Adaptive(economy=one, longest=16).units())
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def test_a_text_that_keeps_less_than_others_is_found_out_within_a_few_drafts() -> None:
    """Hundreds of drafts were kept whole, and then comes a text of which none is."""
    one = economy(table(units=0.3))
    pace = Adaptive(economy=one, longest=16)
    for _ in range(300):
        units = pace.units()
        went(pace, drafted(pace, [1] * units), units)
    assert pace.units() == 16
    other, failed = Adaptive(economy=one, longest=16), 0
    one.bank = 0.0
    while units := other.units():
        went(other, drafted(other, [1] * units), 0)
        failed += 1
    assert failed < 6
    assert Adaptive(economy=one, longest=16).units() > 1  # the next one is not this one


# ---- nodes of point masses -------------------------------------------------------------------------


def test_one_long_draft_that_fails_at_once_does_not_end_long_drafts() -> None:
    pace = Adaptive(economy=economy(table(units=0.05, fed=0.02), 0.98), longest=32)
    assert pace.units() > 16
    went(pace, drafted(pace, list(range(32))), 0)
    for _ in range(2):  # a few that are kept, and it drafts at length again
        went(pace, drafted(pace, list(range(pace.units()))), 32)
    assert pace.units() > 8


def test_a_drafter_whose_drafts_are_not_worth_a_pass_is_asked_less_often() -> None:
    """Where all drafts gain much, a short one is worth less than a token that the target writes at once."""
    shared = economy(table(units=0.01, fed=0.4), 0.9)
    shared.spent, shared.gained = 7.0, 20.0  # a token costs a third of a plain one
    shared.tries = TRIES
    pace = Adaptive(economy=shared, longest=1, cuts=True)
    alone = []
    for _ in range(6):
        assert pace.units() == 1
        drafted(pace, [5, 6], [-1, -1], likely=[0.4, 0.3])
        alone.append(pace.alone(1000))
        pace.observe(Round(handed=[9] * alone[-1]))
        shared.spent, shared.gained = 7.0, 20.0
    assert alone == [2, 4, 8, 8, 8, 8]


def closed(parents: list[int]) -> Iterator[tuple[int, ...]]:
    """Every set of nodes that has all its ancestors."""
    every = range(len(parents))
    sets = chain.from_iterable(combinations(every, n) for n in range(len(parents) + 1))
    for nodes in sets:
        if all(parents[node] < 0 or parents[node] in nodes for node in nodes):
            yield nodes


@pytest.mark.parametrize("seed", range(12))
def test_the_nodes_that_stay_are_those_that_gain_the_most(seed: int) -> None:
    rng = random.Random(seed)
    count, fed, tree = 9, rng.choice([0.05, 0.15, 0.3]), rng.choice([0.0, 0.3])
    parents = [-1, *(rng.randrange(-1, node) for node in range(1, count))]
    # priced at every size: straight lines, and a tree dearer than a chain
    costs = table(passing=1.0, fed=fed, tree=tree)
    pace = Adaptive(economy=economy(costs), longest=8, copies=True, cuts=True, exact=True)
    pace.units()
    chances: list[float] = []
    for parent in parents:
        chances.append(rng.random() * (chances[parent] if parent >= 0 else 1.0))
    chosen = pace._chosen(parents, chances)

    def worth(nodes: tuple[int, ...]) -> float:
        path = all(
            parents[node] == before for before, node in zip([-1, *nodes], nodes, strict=False)
        )
        return sum(chances[n] for n in nodes) - fed * len(nodes) - (0.0 if path else tree)

    best = max(map(worth, closed(parents)))
    assert worth(tuple(sorted(chosen))) == pytest.approx(best, abs=1e-6)


def test_a_tree_of_which_one_path_stays_becomes_a_chain() -> None:
    pace = Adaptive(economy=economy(table(fed=0.3, passing=0.5)), longest=4, cuts=True, exact=True)
    pace.units()
    probabilities = [0.97, 0.01, 0.97, 0.01]
    draft = drafted(pace, [5, 6, 7, 8], [-1, -1, 0, 0], likely=probabilities)
    assert (draft.tokens, draft.parents, draft.ends) == ([5, 7], None, [1, 2])
    assert draft.likely == [0.97, 0.97]


@pytest.mark.parametrize("copies", [False, True])
def test_where_all_draft_at_once_a_draft_is_at_most_twice_as_long_as_one_that_was_kept(
    copies: bool,
) -> None:
    """Otherwise sixteen drafts of full length would follow the first few tokens that were kept; beside copies too."""
    costs = table(units=0.01, fed=0.01, together=16)
    costs.load, costs.fixed, costs.clock = 16, False, 1.0
    one, asked = economy(costs, 0.9), list[int]()
    crowd = one.crowd(1.0)
    crowd.state, crowd.gained = "drafting", True
    pace = Adaptive(economy=one, longest=48)
    if copies:
        copying = Copies(economy=Lookups(costs), longest=40, copies=True, cuts=True)
        pace = Beside(economy=one, longest=48, copying=copying)
    for _ in range(6):
        pace.units()
        asked.append(pace._asked)
        expected = sum(accumulate([0.9] * asked[-1], mul))
        assert len(asked) > 1 or pace._hope == pytest.approx(expected)
        if isinstance(pace, Beside):
            assert pace.model(Draft(found="none"), Room(200, 48, 1)) is not None
        went(pace, drafted(pace, list(range(asked[-1]))), asked[-1])
    assert asked[0] <= PROBE and max(asked) > 24
    assert all(later // 2 <= before for before, later in pairwise(asked))


HEATS = ("new", "0", "1", "2")


def asked_for(fed: float, chance: float, nodes: float, tree: float, units: float) -> Adaptive:
    """A drafter of trees of four levels, or of chains: what it is asked for once both were tried."""
    costs = table(passing=1.0, fed=fed, units=units, tree=tree)
    for size in SIZES:
        costs.curves["draft", CHAIN, 1] = costs.curves.get(("draft", CHAIN, 1), Curve())
        costs.curves["draft", CHAIN, 1].add(size, units / 4 * size)
    one = economy(costs)
    one.nodes, one.trees = nodes, TREES
    pace = Adaptive(economy=one, longest=4, longest_chain=12, cuts=True, exact=True, greedy=False)
    one.beliefs.learn([(("chain", deep(d), h), True) for d in range(1, 13) for h in HEATS] * 40)
    for depth in range(1, 13):
        for heat in HEATS:
            counts = one.beliefs.counts["chain", deep(depth), heat]
            counts[0] = chance * counts[1]
    one.beliefs.learn([(("before", deep(d), h), True) for d in range(1, 5) for h in HEATS] * 40)
    one.beliefs._chances.clear()
    pace.units()
    return pace


def test_a_chain_is_drafted_in_a_trees_place_where_that_is_the_better_rate() -> None:
    wide = asked_for(fed=0.3, chance=0.9, nodes=8, tree=0.5, units=0.4)
    assert wide.chain and wide._asked > 1
    cheap = asked_for(fed=0.0, chance=0.3, nodes=8, tree=0.0, units=0.02)
    assert not cheap.chain and cheap._asked == 4


def test_a_tree_teaches_what_its_first_path_would_have_come_to() -> None:
    """Greedily the first path is the chain that would have been drafted."""
    one = economy(table(passing=0.1, fed=0.0))
    pace = Adaptive(economy=one, longest=2, longest_chain=8, cuts=True, exact=True, greedy=True)
    pace.units()
    assert not pace.chain or one.beliefs.tried(("chain",)) == 0
    pace.chain = False
    draft = drafted(pace, [5, 6, 7, 8], [-1, -1, 0, 1], likely=[0.6, 0.4, 0.5, 0.4])
    done = Round(drafted=draft.tokens, ends=draft.ends, parents=draft.parents)
    done.kept, done.written = [6, 8], [9]  # the way of the second child
    pace.observe(done)
    assert one.beliefs.counts["chain",] == [0.0, 1.0]  # the first path was wrong at once
    assert one.beliefs.counts["before",] == [2.0, 2.0]  # the tree was not


def test_the_nodes_of_a_tree_do_not_count_against_chains() -> None:
    """Most nodes of a tree are wrong because a sibling is right."""
    of_trees, of_chains = Beliefs(), Beliefs()
    for beliefs in (of_trees, of_chains):
        beliefs.learn([(("chain", deep(1), "1"), True), (("chain", deep(2), "1"), False)])
    of_trees.learn([(("tree", likely(0.1), deep(1), "1"), False)] * 100)
    for signal in (("chain", deep(1), "1"), ("chain", deep(7), "1"), ("before", deep(1), "0")):
        before = Beliefs().chance(signal)
        trees, chains = of_trees.chance(signal), of_chains.chance(signal)
        assert trees == (before if signal[0] == "before" else chains)


def test_trees_are_tried_from_what_drafts_have_gained() -> None:
    """What a run may lose at its start is not for trees."""
    one = economy(table(passing=1.0, fed=0.2, tree=1.5))
    pace = Adaptive(economy=one, longest=6, longest_chain=12, cuts=True, exact=True, greedy=False)
    for right in (True, False):
        paths = [
            ((word, deep(d), "1"), right) for word in ("chain", "before") for d in range(1, 13)
        ]
        one.beliefs.learn(paths * 30)
    for bank, only_chain in ((one.allowance, True), (one.allowance + 30, False)):
        one.bank = bank
        pace.units()
        assert pace._asked and pace.chain == only_chain


def test_a_long_match_is_sent_and_a_short_one_is_not_once_that_was_learned() -> None:
    """Matches of one token are mostly wrong, those of nine mostly right: learned without sending any."""
    one = economy(table(passing=1.0, fed=0.1, asked=0.02), 0.4)
    rng = random.Random(1)
    pace = Adaptive(economy=one, longest=10, copies=True, cuts=True, exact=True)
    sent: dict[int, list[int]] = {1: [], 9: []}
    for turn in range(600):
        if not pace.units():
            pace.observe(Round(handed=[0] * pace.alone(50)))
            continue
        grade = rng.choice((1, 9))
        right = grade == 9
        draft = drafted(
            pace, list(range(1, 11)), grade=grade, found="lexical", origins=["main"] * 10
        )
        if turn > 300:
            sent[grade].append(len(draft.tokens))
        if draft.tokens:
            kept = len(draft.tokens) if right else 0
            done = Round(drafted=draft.tokens, kept=draft.tokens[:kept], units_kept=kept)
            done.written = [kept + 1 if right else 99]
            pace.observe(done)
        else:  # the target writes it: what it writes tells as much
            pace.observe(Round(handed=[1 if right else 99] * pace.alone(50)))
    assert min(sent[9]) == 10 and max(sent[1]) == 0


def test_a_rule_that_is_not_exact_teaches_by_what_it_read_alone() -> None:
    for exact in (True, False):
        one = economy(table(passing=1.0, fed=2.0), 0.4)
        pace = Adaptive(economy=one, longest=4, copies=True, cuts=True, exact=exact)
        pace.units()
        draft = drafted(pace, [1, 2, 3, 4], origins=["main"] * 4)
        assert not draft.tokens
        pace.observe(Round(handed=[1, 2]))
        assert bool(one.beliefs.counts) is exact


def test_a_lookup_that_is_not_sent_is_held_against_a_row_of_tokens() -> None:
    """One question so tells of all depths that it reaches, and no pass over a draft is paid for."""
    one = economy(table(passing=1.0, fed=2.0, lone=0.1), 0.4)
    for found, expected in ((3, 3), (SHADOWED + 4, SHADOWED)):
        pace = Adaptive(economy=one, longest=30, copies=True, cuts=True, exact=True)
        assert pace.units()
        draft = drafted(pace, list(range(found)), origins=["main"] * found)
        assert not draft.tokens and pace.net < 0 < one.bank and pace.alone(100) == expected
        before = one.beliefs.tried(())
        pace.observe(Round(handed=list(range(expected))))
        assert one.beliefs.tried(()) == before + expected


def test_a_drafter_that_finds_nothing_is_asked_rarely() -> None:
    costs = table(asked=0.3, lone=0.1)
    pace = Adaptive(economy=economy(costs, 0.4), longest=10, copies=True, cuts=True, exact=True)
    asked = tokens = 0
    while tokens < 20_000:
        if pace.units():
            asked += 1
            drafted(pace, [])
        alone = pace.alone(100)
        pace.observe(Round(handed=[7] * alone))
        tokens += alone
    assert 0.3 * asked < 1.5 * EXPLORE * tokens + ALLOWANCE
    assert asked > 20


def test_what_a_watcher_costs_while_it_is_not_asked_counts() -> None:
    """Reading along costs a tenth of a token, to catch up more: it is let go for the rest of a problem."""
    for dear, expected in ((1.1, True), (1.0, False)):
        costs = table(asked=0.5, passing=1.0, fed=0.2)
        costs.fixed = False
        for size in SIZES:
            costs.add("target", WATCH, 1, size, dear * size)
        costs.fixed = True
        pace = Adaptive(
            economy=economy(costs, 0.4), longest=9, copies=True, cuts=True, watches=True, exact=True
        )
        pace.net, pace.economy.bank = -0.5, 0.0
        assert pace.units() == 0
        assert pace.resting is expected
        assert (pace.alone(FOREVER) == FOREVER) is expected


def test_with_a_recorded_table_every_problem_begins_alike() -> None:
    one = economy(table(units=0.2))
    lengths = []
    for _ in range(2):
        pace = Adaptive(economy=one.opened(), longest=16)
        for _ in range(30):
            lengths.append(pace.units())
            went(pace, drafted(pace, [1] * lengths[-1]), lengths[-1])
    assert lengths[:30] == lengths[30:] and lengths[0] < lengths[29]
    one.costs.fixed = False
    assert one.opened() is one


# ---- steps -----------------------------------------------------------------------------------------


def step_round(units: int, kept: int, length: int = 10) -> Round:
    ends = [length * (i + 1) for i in range(units)]
    handed = [0] * length if kept < units or not units else []
    return Round(
        drafted=[0] * (length * units), ends=ends, units_kept=kept, kept=[0] * (length * kept),
        handed=handed, handed_ends=[length] if handed else [],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "units", "expected"), [(4, 2.0, 4), (1, 2.0, 1), (0, 2.0, 0), (4, 11.0, 0)]
)
def test_steps_are_drafted_where_that_pays(kept: int, units: float, expected: int) -> None:
    pace = AdaptiveSteps(economy=economy(table(units=units, fed=0.02)), longest=4, cap=512)
    for _ in range(120):
        if asked := pace.units():
            done = step_round(asked, min(kept, asked))
            pace.cut(Draft(list(done.drafted), list(done.ends)))
            pace.observe(done)
        else:
            pace.observe(step_round(0, 0))
    pace.economy.bank = 0.0
    assert pace.units() == expected
    if not expected:
        assert pace.alone(1000) >= 1


def test_a_rule_for_tokens_gains_tokens_of_steps() -> None:
    one = economy(table(units=2.0, fed=0.02))
    pace = AdaptiveSteps(economy=one, longest=4, cap=512, by_token=True)
    one.drafted = one.written = 10.0
    for _ in range(60):
        asked = pace.units() or 1
        done = Round(drafted=[0] * 10 * asked, ends=[10 * (i + 1) for i in range(asked)])
        done.kept, done.written = [0] * 6, [1]
        pace.observe(done)
    # seven tokens for a step that costs two to draft: one at a time, and more would be thrown away
    assert pace.units() == 1


def test_a_looked_up_step_is_read_where_its_match_is_good() -> None:
    one = economy(table(asked=0.1, fed=0.1), 0.4)
    pace = CopiedSteps(economy=one, longest=1, cap=512)
    sent: dict[int, bool] = {}
    for turn in range(200):
        pace.units()
        grade = (1, 9)[turn % 2]
        draft = Draft([0] * 10, [10], found="lexical", grade=grade)
        pace.cut(draft)
        sent[grade] = bool(draft.tokens)
        units = 1 if draft.tokens else 0
        pace.observe(step_round(units, units if grade == 9 else 0))
    assert sent == {1: False, 9: True}


def watched(costs: Costs) -> Economy:
    """A target that writes a fifth more slowly while a drafter reads along."""
    costs.fixed = False
    for size in SIZES:
        costs.add("target", WATCH, 1, size, 1.2 * size)
    costs.fixed = True
    return Economy(costs, beliefs=Beliefs(0.5), allowance=COPIES)


@pytest.mark.parametrize("watches", [False, True])
def test_a_lookup_that_finds_no_step_is_asked_less_and_less(watches: bool) -> None:
    """All questions together cost what may be lost at the start, and half a percent from then on."""
    one = watched(table(asked=0.5, fed=0.1))
    pace, asked, along, tokens = CopiedSteps(economy=one, longest=1, cap=512, watches=watches), 0, 0, 0  # fmt: skip
    while tokens < 4000:
        pace.behind(100 + tokens)
        asked += pace.units()
        count = pace.alone(4000 - tokens)
        along += 10 * count * (watches and not pace.resting)
        pace.cut(Draft([]))
        pace.observe(
            Round(handed=[0] * 10 * count, handed_ends=[10 * (i + 1) for i in range(count)])
        )
        tokens += 10 * count
    assert 5 <= asked and 0.5 * asked + 0.2 * along < 2 * (COPIES + 0.005 * 4000)
    assert not watches or pace.resting


def test_a_lookup_whose_steps_are_always_wrong_loses_little() -> None:
    """Whatever their matches promise: each kind of match is new, and has not failed before."""
    one = economy(table(asked=0.1, fed=0.1), 0.9)
    pace, tokens, lost = CopiedSteps(economy=one, longest=1, cap=512), 0, 0.0
    while tokens < 4000:
        pace.behind(100 + tokens)
        asked, count = pace.units(), pace.alone(4000 - tokens)
        draft = Draft([0] * 10 * asked, [10] * asked, found=f"{tokens:03}", grade=tokens % 10)
        pace.cut(draft)
        sent = len(draft.tokens)
        lost += 0.1 * asked + (1.0 + 0.1 * (1 + sent)) * bool(sent)
        pace.observe(Round(drafted=draft.tokens, ends=draft.ends, handed=[0] * 10 * count, handed_ends=[10 * (i + 1) for i in range(count)]))  # fmt: skip
        tokens += 10 * count
    assert 2.0 < lost < 2 * (4 + 0.005 * 4000)


def test_a_lookup_whose_steps_are_kept_is_asked_before_each_step() -> None:
    one = watched(table(asked=0.5, fed=0.1))
    pace = CopiedSteps(economy=one, longest=1, cap=512, watches=True)
    for turn in range(100):
        pace.behind(100 + 10 * turn)
        assert pace.units() == 1 and not pace.resting
        pace.cut(Draft([0] * 10, [10], found="lexical", grade=9))
        pace.observe(step_round(1, turn % 2))  # every second one is kept
    assert one.net > 0


def test_the_cap_follows_what_was_accepted() -> None:
    one = economy(table())
    pace = AdaptiveSteps(economy=one, longest=4, cap=512)
    assert pace.unit_cap() == 512
    one.lengths = [10] * 30
    assert pace.unit_cap() == 20
    assert AdaptiveSteps(economy=one, longest=4, cap=16).unit_cap() == 16


# ---- chances ---------------------------------------------------------------------------------------


def test_chances_come_from_counts_and_from_what_is_like_them() -> None:
    beliefs = Beliefs(0.5)
    for _ in range(100):
        beliefs.learn([(("copy", "m9", deep(1)), True), (("copy", "m1", deep(1)), False)])
    assert beliefs.chance(("copy", "m9", deep(1))) > 0.95
    assert beliefs.chance(("copy", "m1", deep(1))) < 0.05
    assert beliefs.chance(("copy", "m9", deep(7))) > 0.8  # never met: as the others of m9
    assert 0.4 < beliefs.chance(("copy", "m5", deep(1))) < 0.6
    assert Beliefs.of(beliefs.told()).told() == beliefs.told()


def test_a_models_own_probability_is_the_first_guess() -> None:
    beliefs = Beliefs(0.5)
    assert beliefs.chance(("tree", likely(0.97))) == pytest.approx(0.965)
    assert beliefs.chance(("tree", likely(0.01))) == pytest.approx(0.01)
    for _ in range(200):  # and a model that is too sure of itself is found out
        beliefs.learn([(("tree", likely(0.97), deep(1)), False)])
    assert beliefs.chance(("tree", likely(0.97), deep(1))) < 0.1


def test_chances_follow_a_text_that_changes() -> None:
    beliefs = Beliefs(0.5)
    for kept in (True, False):
        for _ in range(3 * MEMORY):
            beliefs.learn([(("copy",), kept)])
    assert beliefs.chance(("copy",)) < 0.1


def test_a_fixed_pace_never_changes() -> None:
    pace = Steady(3, 7)
    draft = Draft([1, 2], [1, 2])
    pace.asked(3, 9.0)
    pace.cut(draft)
    pace.observe(Round(drafted=[1, 2], kept=[1, 2]))
    assert (pace.units(), pace.unit_cap(), pace.alone(9), pace.resting) == (3, 7, 1, False)
    assert draft.tokens == [1, 2]


# ---- what a drafter that reads along has missed ------------------------------------------------------


def watching(recalls: bool = True) -> Adaptive:
    """A drafter that looks things up, behind a row of 16 tokens that it did not see; a pass over n tokens costs 1 + n / 2."""
    costs = table(passing=1.0, fed=0.5)
    own: dict[str, Any] = {"copies": True, "cuts": True, "exact": True, "recalls": recalls}
    pace = Adaptive(economy=economy(costs, 0.4), longest=9, watches=True, **own)
    pace.resting = True
    pace.observe(Round(handed=[1] * 16))
    return pace


def test_what_a_drafter_has_missed_is_priced_before_it_is_asked_again() -> None:
    pace = watching()
    pace.economy.bank = 1 + 17 / 2 - 0.1
    assert not pace.units()
    pace = watching()
    pace.economy.bank = 1 + 17 / 2 + 0.1
    assert pace.units()
    # it has read what it missed, and the next question costs no more than itself
    drafted(pace, [])
    pace.observe(Round(handed=[7]))
    pace.economy.bank, pace.net = 0.0, 0.0
    assert pace.units()


def test_a_drafter_that_reads_the_newest_position_alone_has_missed_little() -> None:
    """The allowance covers a pass over two tokens, and none over seventeen."""
    assert watching(recalls=False).units()
    assert not watching().units()


def test_the_allowance_grows_up_to_what_a_drafter_has_missed() -> None:
    pace = watching()
    assert not pace.units()
    for _ in range(3000):
        pace.economy.went(1.0, 1)
    assert pace.economy.bank == pytest.approx(ALLOWANCE + 1 + 17 / 2)


def test_a_round_is_expected_to_take_what_reading_takes_that_was_missed() -> None:
    pace = watching()
    pace.economy.bank = 20.0
    assert pace.units()
    drafted(pace, [])
    round_ = Round(handed=[7])
    assert pace._spent(round_) == pytest.approx(1 + 17 / 2 + 1.0, abs=1e-6)
