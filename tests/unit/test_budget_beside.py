"""Copies beside a model: which source drafts in a round, how much, and what each learns about itself."""

from __future__ import annotations

from typing import Any

import pytest

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.budget import Adaptive
from semspec.decoding.budget_beside import SUFFIX, Beside, Copies, Lookups
from semspec.decoding.costs import ASK, Costs
from semspec.decoding.economy import COPIED, DRAWN, Economy
from semspec.decoding.pacing import Pacing
from semspec.drafters import reference
from semspec.drafters._first import FirstSession
from semspec.drafters.hybrid import Hybrid
from semspec.drafters.lm import LanguageModel, LanguageModelSession
from semspec.drafters.suffix import Suffix
from semspec.protocols import Drafter, Rule
from semspec.results import tables
from semspec.rules.greedy import Greedy
from semspec.rules.lossless import Lossless
from semspec.rules.typical import Typical
from semspec.types import Context, Draft, Room, Round, Sampling
from tests.support.costs import table
from tests.support.drafting import answerless, kit_for

COSTS: dict[str, float] = {"passing": 1.3, "fed": 0.05, "units": 0.2}
ROOM = Room(200, 40, 1)
NOTHING = Draft(found="none")


def pacing(drafter: Drafter, costs: Costs | None = None) -> Pacing:
    return Pacing.adaptive({"draft": drafter}, 1, costs or table(**COSTS))


def beside(made: Pacing | None = None, **options: Any) -> Beside:
    """The pace of ``sources=suffix+lm``, as a run makes it."""
    hybrid = Hybrid(sources="suffix+lm", **options)
    made = made or pacing(hybrid)
    opened = hybrid.open(kit_for(trees=False))
    pace = made.of_tokens("draft", (hybrid, Lossless()), opened, Sampling(0.6), 40, 1, 32)
    assert isinstance(pace, Beside)
    return pace


def alone() -> Adaptive:
    lm = LanguageModel()
    opened = lm.open(kit_for(trees=False))
    made = pacing(lm).of_tokens("draft", (lm, Lossless()), opened, Sampling(0.6), 32, 1, 32)
    assert isinstance(made, Adaptive)
    return made


@pytest.mark.parametrize(
    ("rule", "exact"), [(Lossless(), True), (Greedy(), True), (Typical(), False)]
)
def test_text_by_a_rule_that_writes_the_targets_own_tells_of_unsent_drafts(
    rule: Rule, exact: bool
) -> None:
    """With ``accept=greedy`` copies that were not sent taught nothing, so none ever was."""
    suffix, dear = Suffix(), table(passing=9.0, fed=1.0)
    opened = suffix.open(kit_for(trees=False))
    pace = pacing(suffix, dear).of_tokens("draft", (suffix, rule), opened, Sampling(0.0), 40)
    assert isinstance(pace, Adaptive)
    for _ in range(20):
        if pace.units():
            draft = copy_of(4)
            pace.cut(draft)
            assert not draft.tokens
        pace.observe(Round(written=[0, 1, 2, 3, 4]))
    assert (pace.economy.beliefs.tried(()) > 0) == exact


def copy_of(length: int, grade: int = 9) -> Draft:
    ends = list(range(1, length + 1))
    return Draft(list(range(length)), ends, found="lexical", grade=grade)


def sees(pace: Beside, found: Draft, kept: int, rounds: int = 12, drawn: int | None = None) -> None:
    """Let rounds pass in which something like this is found, of which ``kept`` tokens are right, and of the model's ``drawn``."""
    right = kept if drawn is None else drawn
    for _ in range(rounds):
        if not pace.units():
            pace.observe(Round(handed=[-1] * pace.alone(50)))
            continue
        draft = Draft(list(found.tokens), list(found.ends), found=found.found, grade=found.grade)
        room, count = pace.model(draft, ROOM), kept
        if room is not None:
            tokens = [at if at < right else -2 for at in range(room.units)]
            draft, count = Draft(tokens, list(range(1, room.units + 1))), right
        pace.cut(draft)
        done = Round(drafted=draft.tokens, ends=draft.ends)
        if draft.tokens:
            done.kept = draft.tokens[:count]
            done.written = [len(done.kept) if len(done.kept) < kept else -1]
        else:
            done.handed = [*range(kept), -1]
        pace.observe(done)


def drawn(pace: Beside, found: Draft = NOTHING) -> int:
    """Return how many tokens the model drafts where this was found."""
    assert pace.units() == 40
    room = pace.model(found, ROOM)
    return 0 if room is None else room.units


def test_where_nothing_is_found_the_model_drafts_as_much_as_alone() -> None:
    for kept in (2, 8, 32):
        together, by_itself = beside(), alone()
        sees(together, NOTHING, kept, rounds=40)
        for _ in range(40):
            units = by_itself.units()
            draft = Draft(list(range(units)), list(range(1, units + 1)))
            by_itself.cut(draft)
            done = Round(drafted=draft.tokens, ends=draft.ends)
            done.kept, done.written = draft.tokens[:kept], [-1]
            by_itself.observe(done)
        assert drawn(together) == by_itself.units() > 0
        assert together.economy.beliefs.told() == by_itself.economy.beliefs.told()
        assert by_itself.economy.rate == pytest.approx(together.economy.rate, rel=0.02)
    assert drawn(together) > 20  # fixed lengths are 5


def test_a_copy_goes_where_it_saves_more_than_the_models_draft() -> None:
    pace = beside()
    sees(pace, copy_of(40), kept=40, rounds=40, drawn=4)
    assert drawn(pace, copy_of(40)) == 0
    draft = copy_of(40)
    pace.cut(draft)
    assert len(draft.tokens) > 30
    pace.observe(Round(drafted=draft.tokens, ends=draft.ends, kept=draft.tokens, written=[-1]))
    sees(pace, copy_of(40), kept=0, rounds=40, drawn=4)
    assert drawn(pace, copy_of(40)) > 0  # no more


@pytest.mark.parametrize("kept", [0, 1, 3, 8, 20])
def test_the_choice_is_the_one_with_the_larger_gain(kept: int) -> None:
    pace = beside()
    sees(pace, copy_of(12), kept, rounds=60)
    pace.economy.banks[1] = pace.copying.economy.banks[1] = 100.0
    found = copy_of(12)
    pace._waits = pace._failed = 0  # not after drafts that failed
    assert pace.units() == 40
    rate, copying = pace.economy.rate, pace.copying
    beliefs = pace.economy.beliefs.chance, copying.economy.beliefs.chance
    worth: list[float] = []
    signals = copying._signals(found, range(-1, 11))
    for length in range(1, 13):
        hope, reached = 0.0, 1.0
        for signal in signals[:length]:
            reached *= beliefs[1](signal)
            hope += reached
        worth.append(rate * copying._mood * hope - (1.3 + 0.05 * (1 + length)))
    length = pace._asked
    hope, reached = 0.0, 1.0
    for depth in range(1, length + 1):
        reached *= pace._chance(depth, False)
        hope += reached
    model = rate * pace._mood * hope - 0.2 * length - (1.3 + 0.05 * (1 + length))
    nothing = -1.35  # a pass over nothing that is drafted
    assert (pace.model(found, ROOM) is None) == (max(worth) > max(model, nothing))


def test_a_model_that_does_not_pay_rests_and_copies_go_on() -> None:
    pace = beside(pacing(Hybrid(sources="suffix+lm"), table(passing=1.3, fed=0.05, units=2.0)))
    sees(pace, NOTHING, kept=0, rounds=30)
    assert pace._waits > 25
    sees(pace, copy_of(20), kept=20, rounds=1)
    assert pace.units() == 40 and pace.model(copy_of(20), ROOM) is None
    draft = copy_of(20)
    pace.cut(draft)
    assert len(draft.tokens) == 20


def test_copies_that_bring_nothing_leave_the_models_drafts_as_they_are() -> None:
    pace = beside()
    sees(pace, copy_of(20), kept=0, rounds=200)
    other = beside()
    sees(other, NOTHING, kept=0, rounds=200)
    sees(pace, NOTHING, kept=32, rounds=100)
    sees(other, NOTHING, kept=32, rounds=100)
    assert drawn(pace) == drawn(other) > 20


def test_each_source_pays_for_its_own_drafts() -> None:
    """What copies have gained is not spent on trials of a model that loses, nor the other way round."""
    dear = table(passing=1.3, fed=0.05, units=2.0)
    for copies, model in ((100.0, 0.0), (0.0, 100.0)):
        pace = beside(pacing(Hybrid(sources="suffix+lm"), dear))
        pace.economy.bank, pace.copying.economy.bank = model, copies
        pace.copying.net = -0.2
        pace.units()
        assert (pace._waits > 0) == (model == 0)
        pace._ledger.turn(pace.copying.economy)
        pace._ledger.affords(1.0, wakes=False)
        assert (pace.economy.bank, pace.copying.economy.bank) == (model, max(copies - 1, 0.0))


def test_costs_are_kept_by_source() -> None:
    hybrid, costs = Hybrid(sources="suffix+lm"), table(**COSTS)
    costs.fixed = False
    pace = beside(pacing(hybrid, costs))
    pace.economy.warm = pace.copying.economy.warm = True
    pace.units()
    assert pace.model(copy_of(9), ROOM) is not None  # of copies nothing is known
    pace.asked(40, 0.5)
    pace.cut(Draft())
    pace.observe(Round(handed=[1]))
    pace._waits = 1000
    assert pace.units() == 40 and pace.model(NOTHING, ROOM) is None
    pace.asked(40, 0.001)
    lookups = costs.curve("draft" + SUFFIX, ASK, 1)
    assert lookups is not None and lookups.at(40) == 0.001
    drafts = costs.curve("draft", ASK, 1)
    assert drafts is not None and drafts.at(40) > 0.4


def test_what_was_learned_of_each_source_is_recorded() -> None:
    hybrid, costs = Hybrid(sources="suffix+eagle3"), table(**COSTS)
    made = pacing(hybrid, costs)
    economies: dict[str, Economy] = dict(made.economies)
    assert set(economies) == {"draft", "draft" + SUFFIX}
    assert isinstance(economies["draft" + SUFFIX], Lookups)
    assert economies["draft"].beliefs.first == DRAWN
    assert economies["draft" + SUFFIX].beliefs.first == COPIED
    economies["draft" + SUFFIX].beliefs.learn([(("lex  0", "m5", "2", "1"), True)])
    economies["draft"].beliefs.learn([(("before", "2", "1"), False)])
    told = tables.told(costs, economies)
    read = tables.Recorded(costs=costs, learned=told["learned"])
    again = Pacing.adaptive({"draft": hybrid}, 1, read.costs, read.fill)
    for who, one in economies.items():
        assert again.economies[who].beliefs.told() == one.beliefs.told() != Beliefs().told()


def test_lookups_alone_and_sources_without_a_model_are_as_they_were() -> None:
    for sources in ("suffix+adapld", "suffix+token_recycling"):
        hybrid = Hybrid(sources=sources)
        assert hybrid.beside is None and not hybrid.chains
        assert set(pacing(hybrid).economies) == {"draft"}
    for sources in ("suffix+lm", "rest+suffix+eagle3"):
        hybrid = Hybrid(sources=sources)
        assert hybrid.beside is not None and hybrid.beside.rows and hybrid.chains


def test_the_paces_of_both_sources_have_the_lengths_of_their_own() -> None:
    pace = beside()
    assert (pace.longest, pace.longest_chain, pace.copying.longest) == (32, 0, 40)
    assert isinstance(pace.copying, Copies) and pace.copying.copies and not pace.copies
    hybrid = Hybrid(sources="suffix+lm", tree="dynamic", tree_depth=4)
    opened = hybrid.open(kit_for(trees=True))
    made = pacing(hybrid).of_tokens("draft", (hybrid, Lossless()), opened, Sampling(), 40, 1, 32)
    assert isinstance(made, Beside)
    assert (made.longest, made.longest_chain, made.cuts) == (4, 32, True)


def test_references_of_a_problem_are_one_more_source_of_a_hybrid() -> None:
    """Copied first; the model is still asked for once, by whoever says which source drafts."""
    kit = kit_for(trees=False, references=((1, 2, 3, 4, 5, 6, 7, 8),))
    session = reference.beside(Hybrid(sources="suffix+lm", chain=3).open(kit), kit, 40)
    assert isinstance(session, FirstSession)
    assert len(session.copying) == 2 and isinstance(session.other, LanguageModelSession)
    assert session.length == 3
    context = Context(1, [9])
    context.extend([1, 2, 3, 4, 5])
    draft = answerless(session.draft(context, ROOM))
    assert (draft.found, draft.tokens) == ("reference", [6, 7, 8])
