"""How much to draft: the length with the best goodput, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from semspec.decoding.pace import Adaptive, Steady
from semspec.drafters.lm import LanguageModel
from semspec.driver import Driver
from semspec.engines.toy import Toy, ToyEngine
from semspec.loop import Speculation, speculate
from semspec.protocols import Plan
from semspec.rules.logprob import LogProb
from semspec.rules.lossless import Lossless
from semspec.types import Answer, Context, Outcome, Query, Round, Sampling
from tests.support.law import PROMPT, own_rng, toy_kit


def round_of(units: int, kept: int, draft: float, verify: float, write: float = 0.0) -> Round:
    ends = [10 * (i + 1) for i in range(units)]
    handed = [0] * 10 if write else []
    return Round(
        drafted=[0] * (10 * units),
        ends=ends,
        units_kept=kept,
        handed=handed,
        handed_over=bool(write),
        handed_ends=[10] if write else [],
        seconds={"draft": draft, "verify": verify, "write": write},
        draft_seconds=draft,
    )


def goodput(n: int, a: float, d: float, v: float, w: float) -> float:
    """The formula of ``Adaptive`` by the slow road: over all ways a draft can end."""
    if n == 0:
        return 1 / w
    advanced = seconds = 0.0
    for kept in range(n + 1):
        chance = a**kept * (1 - a if kept < n else 1)
        advanced += chance * (kept + (kept < n))
        seconds += chance * (n * d + v * (1 + 0.1 * (n - 1)) + (w if kept < n else 0.0))
    return advanced / seconds


@pytest.mark.parametrize(
    ("kept", "draft", "verify", "write"),
    [(4, 0.1, 1.0, 5.0), (1, 0.1, 1.0, 5.0), (0, 2.0, 2.0, 1.0), (3, 0.5, 3.0, 4.0)],
)
def test_the_pace_settles_on_the_best_length(
    kept: int, draft: float, verify: float, write: float
) -> None:
    pace = Adaptive(longest=6, cap=512)
    for _ in range(300):  # four units a draft, of which so many are accepted
        pace.observe(round_of(4, kept, 4 * draft, 1.3 * verify, write if kept < 4 else 0.0))
        if kept == 4:  # every cost has to be seen once
            pace.write.add(write)
    a = pace.accepted / pace.judged
    assert a == pytest.approx(min(1.0, kept / min(4, kept + 1)), abs=0.02)
    best = max(range(7), key=lambda n: goodput(n, a, draft, verify, write))
    pace.idle = 0
    assert pace.units() == best


@pytest.mark.parametrize(
    ("kept", "draft", "verify"), [(4, 0.1, 1.0), (1, 0.1, 1.0), (1, 0.4, 1.0), (0, 0.5, 1.0)]
)
def test_a_rule_that_writes_by_itself_hands_nothing_over(
    kept: int, draft: float, verify: float
) -> None:
    """As rules for tokens do: a rejection costs no pass of its own, and a whole draft gains one more."""
    pace = Adaptive(longest=6, cap=1)
    for _ in range(300):
        done = round_of(4, kept, 4 * draft, 1.3 * verify)
        pace.observe(replace(done, written=[0]))
    a = pace.accepted / pace.judged

    def rate(n: int) -> float:
        gained = 1.0  # over all ways a draft can end, and the token that follows
        for end in range(n + 1):
            gained += end * a**end * (1 - a if end < n else 1)
        return gained / (n * draft + (verify * (1 + 0.1 * (n - 1)) if n else verify))

    pace.idle = 0
    assert pace.units() == max(range(7), key=rate)


def test_a_step_completed_by_salvage_is_not_taken_for_a_rule_that_writes() -> None:
    """Rejected and kept whole: the rule wrote it, and what it handed over had nothing left to write."""
    pace = Adaptive(longest=4, cap=512)
    for n in range(200):
        pace.observe(round_of(1, n % 2, 0.005, 0.011, 0.0 if n % 2 else 0.1))
    best = pace.units()
    assert best > 0
    rejected = replace(round_of(1, 0, 0.005, 0.011), written=[0] * 10)
    pace.observe(replace(rejected, handed_over=True))
    assert (pace.units(), pace.writes) == (best, False)
    pace.observe(rejected)  # a rule that writes by itself is one
    assert pace.writes


def test_a_tree_is_as_long_as_it_is_deep() -> None:
    """Nodes beside the path cost no acceptance: they are part of what a level costs."""
    tree, chain = Adaptive(longest=6, cap=1), Adaptive(longest=6, cap=1)
    for kept in (3, 1, 2):
        done = round_of(3, kept, 0.3, 1.0, 0.5)
        chain.observe(done)
        parents = [-1, -1, -1, 0, 0, 1, 3]
        wide = replace(done, drafted=[0] * 7, ends=list(range(1, 8)), parents=parents)
        tree.observe(wide)
    assert (tree.accepted, tree.judged) == (chain.accepted, chain.judged)
    assert (tree.draft, tree.verify, tree.write) == (chain.draft, chain.verify, chain.write)
    assert tree.lengths == [1] * 6


class Slowly:
    """An engine that takes half a second for each pass and a tenth more for each query in it."""

    def __init__(self, engine: ToyEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        found = self.engine.answer(queries)
        for answer in found:
            answer.seconds = 0.5 + 0.1 * len(queries)
        return found


def test_the_size_of_a_batch_counts_in_the_cost() -> None:
    """A pass that ten problems share costs each of them its whole time, drafting and verifying."""
    models = {role: Slowly(engine) for role, engine in Toy(vocabulary=4, seed=3).models().items()}
    costs: dict[int, list[tuple[float, float]]] = {}
    for size in (1, 10):
        paces = [Adaptive(2, 1) for _ in range(10)]

        def plans(paces: Sequence[Adaptive] = paces) -> Iterator[tuple[Context, Plan[Outcome]]]:
            for number, pace in enumerate(paces):
                context, rule = Context(number, PROMPT), Lossless()
                kit = toy_kit(rule, models["target"].engine, Sampling(1.0), number)
                session = LanguageModel().open(own_rng(kit, "draft"))
                problem = Speculation(context, kit, 3, session, rule.open(kit), pace)
                yield context, speculate(problem)

        list(Driver(dict(models)).run(plans(), size))  # type: ignore[arg-type]
        costs[size] = [(p.draft.value or 0.0, p.verify.value or 0.0) for p in paces]
    for (draft, verify), (together, verified) in zip(costs[1], costs[10], strict=True):
        assert draft == pytest.approx(0.6, abs=0.05) and verify == pytest.approx(0.6, abs=0.05)
        assert together > draft and verified > verify
    assert max(verified for _, verified in costs[10]) == pytest.approx(1.5, abs=0.05)


class Dear:
    """An engine whose passes take seconds: ten for each token that it writes, fifty for others."""

    def __init__(self, engine: ToyEngine) -> None:
        self.engine, self.spent = engine, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        found = self.engine.answer(queries)
        for query, answer in zip(queries, found, strict=True):
            answer.seconds = 10.0 * len(answer.tokens) if query.generate else 50.0
            self.spent += answer.seconds
        return found


class Learning(Adaptive):
    """Drafts one, two and three units in turn, whatever it learns."""

    turn = 0

    def units(self) -> int:
        self.turn += 1
        return 1 + self.turn % 3


@pytest.mark.parametrize("threshold", [-1.5, -99.0], ids=["rejections", "everything-kept"])
def test_a_draft_made_ahead_costs_what_any_draft_costs(threshold: float) -> None:
    """It is learned from where it is judged, and booked where it was made, used or not."""
    for ahead in (False, True):
        models = {role: Dear(engine) for role, engine in Toy(vocabulary=4, seed=3).models().items()}
        rule, judged_ahead, rejected = LogProb(threshold=threshold), 0, 0
        for seed in range(10):
            kit = toy_kit(rule, models["target"].engine, Sampling(1.0), seed)
            pace, context = Learning(3, 1), Context(seed, PROMPT)
            session = LanguageModel().open(own_rng(kit, "draft"))
            models["draft"].spent = models["target"].spent = 0.0
            judging = rule.open(kit)
            problem = Speculation(context, kit, 40, session, judging, pace, ahead=ahead)
            ((done),) = Driver(dict(models)).run([(context, speculate(problem))])  # type: ignore[arg-type]
            rounds = done.value.rounds
            # what a drafter does itself is counted, too: next to nothing
            assert pace.draft.value == pytest.approx(10.0, rel=0.01)
            for one in rounds:
                assert one.draft_seconds == pytest.approx(10.0 * len(one.drafted), abs=0.1)
            spent = sum(one.seconds.get("draft", 0.0) for one in rounds)
            assert spent == pytest.approx(models["draft"].spent, rel=0.01)
            rest = sum(s for one in rounds for p, s in one.seconds.items() if p != "draft")
            assert rest == pytest.approx(models["target"].spent)
            judged_ahead += sum(one.ahead for one in rounds)
            rejected += sum(one.handed_over for one in rounds)
        assert bool(judged_ahead) is ahead and bool(rejected) is (threshold > -99)


def test_the_pace_tries_drafts_again_after_a_while() -> None:
    pace = Adaptive(longest=4, cap=512, explore=3)
    for _ in range(50):
        pace.observe(round_of(1, 0, 2.0, 2.0, 1.0))
    told = []
    for _ in range(9):
        units = pace.units()
        told.append(units)
        pace.observe(round_of(units, 0, 2.0 * units, 2.0 * units, 1.0))
    assert 0 in told and 1 in told and told.count(0) > told.count(1)


def test_the_cap_follows_what_was_accepted() -> None:
    pace = Adaptive(longest=4, cap=512)
    assert pace.unit_cap() == 512
    for _ in range(30):
        pace.observe(round_of(2, 2, 1.0, 1.0))
    assert pace.unit_cap() == 20  # units of ten tokens
    assert Adaptive(longest=4, cap=16, lengths=[30] * 40).unit_cap() == 16


def test_a_fixed_pace_never_changes() -> None:
    pace = Steady(3, 7)
    pace.observe(round_of(3, 0, 9.0, 9.0))
    assert (pace.units(), pace.unit_cap()) == (3, 7)
