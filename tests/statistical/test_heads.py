"""Drafts by heads keep the target's law whatever the heads are, here random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semspec.drafters.eagle3 import Eagle3Drafter
from semspec.drafters.medusa import MedusaDrafter
from semspec.engines.toy import Toy
from semspec.models.location import ModelConfig
from semspec.protocols import Kit, Plan
from semspec.rules.lossless import Lossless
from semspec.types import Context, Draft, Room, Sampling
from tests.support.binding import run_of
from tests.support.deep import samples
from tests.support.heads import target_folder, toy_eagle3, toy_medusa
from tests.support.law import p_value, speculative_plan

SURE = 1e-4
SAMPLES = samples(quick=500, deep=1_200)
pytestmark = pytest.mark.deep(quick=True)
HEADS = ("eagle3", "medusa")
TOY = Toy(vocabulary=4, seed=3)
STOPPING = Toy(vocabulary=4, seed=3, stop=True)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Heads with random weights; that of EAGLE-3 can draft three of the four tokens."""
    home: Path = tmp_path_factory.mktemp("heads")
    target = target_folder(home / "target", TOY.vocabulary)
    eagle3 = ModelConfig(path=str(toy_eagle3(home / "eagle3", TOY.vocabulary, [0, 2, 3])))
    medusa = ModelConfig(path=str(toy_medusa(home / "medusa", TOY.vocabulary)))
    size = {"tree_depth": 2, "tree_top_k": 3, "tree_nodes": 6}
    made: dict[str, Any] = {}
    for tree in ("chain", "static", "dynamic", "sampled"):
        options = {"tree": tree, **size}
        made[f"eagle3 {tree}"] = Eagle3Drafter(head=eagle3, **options).bind(
            run_of({}, folders={"target": target})
        )
        made[f"medusa {tree}"] = MedusaDrafter(head=medusa, **options).bind(
            run_of({}, folders={"target": target})
        )
    return made


CUT = Sampling(0.8, top_k=3, top_p=0.9)
CASES = [
    *(
        (f"{head} {tree}", Sampling(1.0))
        for head in HEADS
        for tree in ("static", "dynamic", "sampled")
    ),
    *((f"{head} chain", CUT) for head in HEADS),
    ("eagle3 sampled", Sampling(0.8, top_p=0.9)),
    ("medusa static", Sampling(0.6)),
]


@pytest.mark.parametrize(("name", "sampling"), CASES, ids=str)
def test_drafts_of_random_heads_are_lossless(drafters: Any, name: str, sampling: Sampling) -> None:
    rule = Lossless()
    plan = speculative_plan(drafters[name], rule)
    assert p_value(STOPPING, plan, rule, sampling, samples=SAMPLES) > SURE


def test_rows_other_than_the_drawn_ones_are_detected(drafters: Any) -> None:
    """The head's rows without its vocabulary's limits are not what was drawn from."""
    rule = Lossless()
    drafter = drafters["eagle3 chain"]
    plan = speculative_plan(_Smeared(drafter), rule)
    assert p_value(TOY, plan, rule, Sampling(1.0), samples=SAMPLES) < 1e-6


class _Smeared:
    """Says of its drafts that any token might have been drawn."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter

    def open(self, kit: Kit) -> Any:
        session = self.drafter.open(kit)
        draft = session.draft

        def smeared(context: Context, room: Room) -> Plan[Draft]:
            found = yield from draft(context, room)
            if found.probs is not None:
                found.probs = 0.5 * found.probs + 0.5 / TOY.vocabulary
            return found

        session.draft = smeared
        return session
