"""Copies beside a model or a head: each draft is judged by its own kind, and the choice does not depend on drawn tokens.

One text has drafts from both: the prompt repeats itself, so some rounds copy, and the others draw from the toy's draft
model or from a head with random weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.drafters.hybrid import Hybrid
from semspec.drafters.lm import LanguageModel
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.drafters.reference import Reference, beside
from semspec.engines.toy import Toy
from semspec.protocols import Kit, Plan
from semspec.rules.lossless import Lossless
from semspec.types import Context, Draft, Read, Room, Sampling, What
from tests.support.binding import run_of
from tests.support.datastores import TOY_FACTS
from tests.support.deep import samples
from tests.support.heads import target_folder, toy_eagle3
from tests.support.law import p_value, speculative_plan

SURE = 1e-4
TOY = Toy(vocabulary=4, seed=3)
SAMPLES = samples(quick=600, deep=2_000)
FEWER = samples(quick=1_500, deep=2_000)  # outputs that wrong drafters are found out with
pytestmark = pytest.mark.deep(quick=True)
PROMPT = (0, 1, 3, 0, 1, 2, 0, 1)
SMALL = {"tree_depth": 3, "tree_top_k": 3, "tree_nodes": 7}
CUT = Sampling(0.8, top_k=3, top_p=0.9)


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home: Path = tmp_path_factory.mktemp("heads")
    target = target_folder(home / "target", TOY.vocabulary)
    head = str(toy_eagle3(home / "eagle3", TOY.vocabulary, [0, 2, 3]))
    run = run_of({"target": TOY_FACTS, "draft": TOY_FACTS}, folders={"target": target})
    made = {
        f"{name} {tree}": Hybrid(
            sources=f"suffix+{name}", match=2, eagle3=head, tree=tree, chain=2, **SMALL
        ).bind(run)
        for name in ("lm", "eagle3")
        for tree in ("chain", "dynamic", "sampled")
    }
    return made | {"public": Hybrid(sources="suffix+token_recycling", match=2).bind(run)}


CASES = [
    ("lm chain", Sampling(1.0), "token"),
    ("lm chain", CUT, "paragraph"),
    ("lm dynamic", Sampling(0.6), "token"),
    ("lm sampled", Sampling(1.0), "token"),
    ("eagle3 chain", CUT, "token"),
    ("eagle3 dynamic", Sampling(1.0), "token"),
    ("eagle3 sampled", Sampling(0.8, top_p=0.9), "token"),
    ("public", Sampling(1.0), "token"),
]


@pytest.mark.parametrize(("name", "sampling", "split"), CASES, ids=str)
def test_copies_beside_a_model_are_lossless(
    bound: Any, name: str, sampling: Sampling, split: str
) -> None:
    rule = Lossless()
    plan = speculative_plan(bound[name], rule)
    options = {"prompt": PROMPT, "draft_length": 4, "split": split, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, sampling, **options) > SURE  # type: ignore[arg-type]


def test_both_kinds_of_drafts_come_and_carry_their_own_rows(bound: Any) -> None:
    kinds = set()

    class Noting:
        def open(self, kit: Kit) -> Any:
            session = bound["lm chain"].open(kit)
            draft = session.draft

            def noted(context: Context, room: Room) -> Plan[Draft]:
                found = yield from draft(context, room)
                kinds.add((found.found, found.probs is not None))
                assert found.probs is None or len(found.probs) == len(found.tokens) <= 2
                return found

            session.draft = noted
            return session

    rule = Lossless()
    plan = speculative_plan(Noting(), rule)  # type: ignore[arg-type]
    p_value(TOY, plan, rule, Sampling(1.0), 50, draft_length=4, length=6, prompt=PROMPT)
    assert kinds == {("lexical", False), ("", True)}


@pytest.mark.parametrize("split", ["token", "paragraph"])
def test_a_reference_is_lossless_by_itself_and_beside_a_model(split: str) -> None:
    rule = Lossless()

    class Referring:
        def __init__(self, other: Any) -> None:
            self.other = other

        def open(self, kit: Kit) -> Any:
            kit = replace(kit, references=((0, 1, 2, 3, 1, 0), (2, 2, 0)))
            alone = Reference().open(kit)
            return beside(self.other.open(kit), kit, 2) if self.other else alone

    for other in (None, LanguageModel()):
        plan = speculative_plan(Referring(other), rule)  # type: ignore[arg-type]
        options = {"prompt": PROMPT, "draft_length": 3, "split": split, "samples": SAMPLES}
        assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE  # type: ignore[arg-type]


class Wrong:
    """Two sources put together as public code has it, wrongly."""

    def __init__(self, peeks: bool) -> None:
        self.peeks = peeks

    def open(self, kit: Kit) -> Any:
        copying, drawing = PromptLookup(longest=3).open(kit), LanguageModel().open(kit)
        peeks = self.peeks

        class Session:
            watches, recalls = (), True

            def see(self, seen: Any) -> None: ...

            def observe(self, context: Context, done: Any) -> None: ...

            def draft(self, context: Context, room: Room) -> Plan[Draft]:
                copy = yield from copying.draft(context, room)
                drawn = yield from drawing.draft(context, room)
                if peeks:  # the model's draft is sent where it is like the copy
                    return drawn if drawn.tokens[:1] == copy.tokens[:1] else copy
                # the copy is sent with the rows of what the model had drawn
                if copy.tokens and drawn.probs is not None:
                    count = min(len(copy.tokens), len(drawn.probs))
                    rows = drawn.probs[:count]
                    return Draft(
                        copy.tokens[:count], copy.ends[:count], rows,
                        evidence={Read(What.PROBS): rows},
                    )  # fmt: skip
                return drawn

        return Session()


@pytest.mark.parametrize("peeks", [False, True])
def test_copies_with_a_models_rows_and_choices_by_what_was_drawn_are_detected(peeks: bool) -> None:
    rule = Lossless()
    plan = speculative_plan(Wrong(peeks), rule)  # type: ignore[arg-type]
    options = {"prompt": PROMPT, "draft_length": 3, "samples": FEWER}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) < 1e-6  # type: ignore[arg-type]
