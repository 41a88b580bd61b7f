"""Trees are lossless, whatever their shape and wherever their nodes come from.

tests/unit/test_tree_acceptance.py has the exact tests of the arithmetic. Here it runs in the loop, with drafter and engine,
and two faulty rules from public code must fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from semspec.decoding.sampling import draw_next
from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.drafters._trees import Growth
from semspec.drafters.lm import LanguageModel
from semspec.engines.toy import Toy
from semspec.protocols import Kit, Plan
from semspec.rules._tokens import LosslessSession, Scored
from semspec.rules.lossless import Lossless
from semspec.rules.random import Random
from semspec.types import PROBS, Context, Draft, Room, Sampling
from tests.support.deep import samples
from tests.support.law import p_value, speculative_plan

SURE = 1e-4
TOY = Toy(vocabulary=4, seed=3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True)
SAMPLES = samples(quick=800, deep=2_000)
FEWER = samples(quick=1_500, deep=2_500)  # outputs that wrong rules are found out with
pytestmark = pytest.mark.deep(quick=True)
TREES = {
    tree: LanguageModel(tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=7)
    for tree in ("static", "dynamic", "sampled")
}
CASES = [
    ("static", Sampling(1.0), 1),
    ("dynamic", Sampling(0.6), 3),
    ("sampled", Sampling(1.0), 1),
    ("sampled", Sampling(0.6), 3),
    ("dynamic", Sampling(0.8, top_p=0.9), 1),
    ("sampled", Sampling(1.0, top_k=3), 1),
    ("dynamic", Sampling(1.0, min_p=0.15), 1),
    ("sampled", Sampling(1.2, min_p=0.15), 1),
    ("static", Sampling(0.3), 3),
    ("dynamic", Sampling(1.0), 1),
    ("sampled", Sampling(0.3), 1),
]


@pytest.mark.parametrize(("tree", "sampling", "concurrency"), CASES, ids=str)
def test_trees_are_lossless(tree: str, sampling: Sampling, concurrency: int) -> None:
    rule = Lossless()
    plan = speculative_plan(TREES[tree], rule)
    p = p_value(TOY, plan, rule, sampling, samples=SAMPLES, draft_length=3, concurrency=concurrency)
    assert p > SURE


@dataclass(frozen=True, kw_only=True)
class Everything(DrafterBase):
    """Proposes without any model: duplicates among siblings, and nodes past an end of text."""

    tokens: list[int] = field(default_factory=lambda: [3, 0, 0, 1, 2, 0, 0, 1, 3, 3])
    parents: list[int] = field(default_factory=lambda: [-1, -1, -1, 0, 1, 1, 2, 2, 4, 6])

    def open(self, kit: Kit) -> Any:
        return EverythingSession(self)


class EverythingSession(DraftSessionBase):
    def __init__(self, tree: Everything) -> None:
        self.tree = tree

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        tokens, parents = list(self.tree.tokens), list(self.tree.parents)
        return Draft(tokens, list(range(1, len(tokens) + 1)), parents=parents)


def test_duplicates_and_nodes_past_the_end_are_lossless() -> None:
    """Deeper than what the budget leaves, too: three levels, of which the last round has one."""
    rule = Lossless()
    plan = speculative_plan(Everything(), rule)
    assert p_value(STOPPING, plan, rule, Sampling(1.0), samples=SAMPLES) > SURE


@pytest.mark.parametrize("tree", ["dynamic", "sampled"])
def test_trees_inside_a_step_are_lossless(tree: str) -> None:
    """Every drafted step is rejected: what comes out was all written by trees."""
    rule = Random(rate=0.0)
    plan = speculative_plan(LanguageModel(), rule, nested=TREES[tree])
    options = {"split": "paragraph", "step_cap": 3, "samples": SAMPLES // 2}
    assert p_value(STOPPING, plan, rule, Sampling(1.0), **options) > SURE  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Claims(LanguageModel):
    """Says, wrongly, that its most probable tokens were drawn from the rows they stand in."""

    def seed(self, kit: Kit, room: Room, names: Any = None) -> Growth:
        tree = super().seed(kit, room, names)
        honest = tree.draft

        def draft(sampled: bool = False, with_rows: bool = True) -> Draft:
            return honest(sampled=True)

        tree.draft = draft  # type: ignore[method-assign]
        return tree


def test_quotients_on_unsampled_trees_are_detected() -> None:
    rule = Lossless()
    plan = speculative_plan(Claims(tree="static", tree_depth=2, tree_top_k=3, tree_nodes=5), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=FEWER, draft_length=2) < 1e-12


class Independent(LosslessSession):
    """One draw for each branch, as if it had not been asked before."""

    def accepted(self, context: Context, scored: Scored) -> Tensor:
        p = scored.answer[PROBS]
        chances = torch.tensor([self.kit.rng.random() for _ in scored.draft.tokens])
        return chances < p[scored.shape.rows, scored.tokens]

    def following(self, scored: Scored, path: list[int]) -> int:
        row = scored.answer[PROBS][path[-1] + 1 if path else 0]
        return draw_next(row, self.kit.sampling, self.kit.rng)


@dataclass(frozen=True, kw_only=True)
class Independently(Lossless):
    def open(self, kit: Kit) -> Independent:
        return Independent(kit)


def test_a_draw_for_each_branch_is_detected() -> None:
    rule = Independently()
    plan = speculative_plan(TREES["static"], rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=FEWER, draft_length=3) < 1e-12
