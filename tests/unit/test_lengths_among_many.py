"""Lengths of drafts where problems come and go: one hard place for all, and decisions that are shared."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from semspec.decoding import budget_hindsight
from semspec.decoding.beliefs import deep
from semspec.decoding.budget import Adaptive
from semspec.decoding.crowd import Crowd
from semspec.decoding.economy import Economy
from semspec.types import Draft, Round
from tests.support.costs import table

SIZE, LONGEST = 16, 6


@dataclass
class Problems:
    """Problems that draft together, by a clock that goes on with every turn."""

    economy: Economy = field(init=False)
    paces: list[Adaptive] = field(init=False)

    def __post_init__(self) -> None:
        costs = table(passing=1.0, fed=0.1, units=0.1, together=SIZE)
        costs.fixed, costs.load = False, SIZE
        costs.answered(1.0)
        self.economy = Economy(costs)
        crowds = self.economy.crowds
        crowds.known[SIZE] = Crowd(SIZE, "drafting", True, own=True)
        crowds.running(SIZE, 1.0, 1.0)
        self.paces = [Adaptive(economy=self.economy, longest=LONGEST) for _ in range(SIZE)]

    def turn(self, keeps: int) -> set[int]:
        """Let all draft, and keep at most so much of each draft; return the lengths of the drafts (0: all wrote)."""
        lengths = [pace.units() for pace in self.paces]
        rows = [0 if n else pace.alone(1000) for pace, n in zip(self.paces, lengths, strict=True)]
        took = max(rows) or 1.1 + 0.2 * max(lengths)
        assert self.economy.costs.clock is not None
        self.economy.costs.answered(self.economy.costs.clock + took)
        for pace, length, row in zip(self.paces, lengths, rows, strict=True):
            if row:
                pace.observe(Round(handed=[-1] * row))
                continue
            draft = Draft(list(range(length)), list(range(1, length + 1)))
            pace.cut(draft)
            done = Round(drafted=draft.tokens, ends=draft.ends)
            done.kept, done.written = draft.tokens[:keeps], [-1]
            pace.observe(done)
        return set(lengths)


def turns_until_longer(most: int) -> int:
    """Return the turns, at most so many, until drafts are longer than what a hard passage of all texts has left of them."""
    problems = Problems()
    for heat in ("new", "0", "1", "2"):
        seen = [(("before", deep(depth), heat), depth < 3) for depth in (1, 2, 3, 4, 6)]
        problems.economy.beliefs.learn(seen * 200)
    for turn in range(most):
        if max(problems.turn(LONGEST)) > 2:
            return turn
    return most


def test_drafts_grow_again_after_a_hard_passage_that_all_texts_had_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 5 < turns_until_longer(100) < 60
    monkeypatch.setattr(budget_hindsight, "FORGOTTEN", 0.0)
    assert turns_until_longer(100) == 100


def test_the_first_hard_place_of_all_texts_is_not_taken_for_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chances = []
    for events in (budget_hindsight.EVENTS, float(SIZE)):
        monkeypatch.setattr(budget_hindsight, "EVENTS", events)
        problems = Problems()
        problems.turn(LONGEST)
        problems.turn(1)
        chances.append(problems.economy.beliefs.chance(("before", deep(2), "2")))
    assert chances[0] > 1.5 * chances[1]


def test_drafts_that_stay_short_for_a_reason_are_seldom_longer() -> None:
    """Forgetting costs little where longer drafts are never kept."""
    problems, longer = Problems(), 0
    for _ in range(50):
        problems.turn(2)
    for _ in range(200):
        longer += max(problems.turn(2)) > 3
    assert longer < 20


def test_problems_whose_drafts_went_alike_share_a_decision_for_one_turn() -> None:
    problems = Problems()
    economy, asked = problems.economy, list[int]()

    def decide() -> int:
        asked.append(1)
        return len(asked)

    assert [economy.alike(("a", 1), decide) for _ in range(3)] == [1, 1, 1]
    assert economy.alike(("b", 1), decide) == 2
    economy.costs.load = 4  # another load within the turn
    assert economy.alike(("a", 1), decide) == 3
    economy.costs.answered(2.0)
    assert economy.alike(("a", 1), decide) == 4
