"""Whatever a drafter retrieves from its context or a corpus, the output has exactly the target's law.

The prompt repeats itself, so that every drafter finds something in nearly every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from semspec import registry
from semspec.datastores.growing import GrowingStore
from semspec.decoding.pace import Pace
from semspec.drafters.suffix import Suffix
from semspec.engines.toy import Toy
from semspec.protocols import Drafter, Kit, Plan
from semspec.rules._tokens import LosslessSession, Scored
from semspec.rules.lossless import Lossless
from semspec.types import Context, Outcome, Sampling
from tests.statistical.test_laws import SURE
from tests.support.datastores import with_toy_datastore
from tests.support.deep import samples
from tests.support.law import MakePlan, p_value, speculative_plan

TOY = Toy(vocabulary=4, seed=3)
SAMPLES = samples(quick=600, deep=1_500)
FEWER = samples(quick=1_000, deep=2_000)  # outputs that wrong rules are found out with
pytestmark = pytest.mark.deep(quick=True)
REPEATING = (0, 1, 3, 0, 1, 2, 0, 1)
CONTEXT_DRAFTERS = [
    name
    for name, plugin in registry.plugins("drafter").items()
    if not plugin.cls().models()
    and not plugin.cls.plain
    and not plugin.cls().levels  # heads are trained for a target
]


def retrieval(name: str) -> Drafter:
    """With a datastore of texts over the toy's tokens, where it copies from one."""
    if name == "suffix, static":  # the corpus wherever it matches at all
        drafter: Any = Suffix(datastore="toy", bias=0, threshold=1)
    else:
        drafter = registry.plugin("drafter", name).cls()
    bound: Drafter = with_toy_datastore(drafter, TOY.vocabulary)
    return bound


@pytest.mark.parametrize("name", [*CONTEXT_DRAFTERS, "suffix, static"])
def test_retrieval_is_lossless(name: str) -> None:
    rule = Lossless()
    plan = speculative_plan(retrieval(name), rule)
    options = {"prompt": REPEATING, "draft_length": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("prompt_lookup", Sampling(0.6)),
        ("adapld", Sampling(0.8, top_p=0.9)),  # trees
        ("token_recycling", Sampling(0.6, top_k=3)),
    ],
    ids=str,
)
def test_retrieval_is_lossless_at_other_temperatures(name: str, sampling: Sampling) -> None:
    rule = Lossless()
    plan = speculative_plan(retrieval(name), rule)
    options = {"prompt": REPEATING, "draft_length": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, sampling, **options) > SURE


# hybrid hands on what one of these drafted, at the cost of three
ONE_SOURCE = [name for name in CONTEXT_DRAFTERS if name != "hybrid"]


@pytest.mark.parametrize("name", [*ONE_SOURCE, "suffix, static"])
def test_retrieved_steps_are_lossless(name: str) -> None:
    """Copied to the end of their paragraph, as chains, and cut by tokens."""
    rule = Lossless()
    plan = speculative_plan(retrieval(name), rule)
    options = {"prompt": REPEATING, "split": "paragraph", "samples": SAMPLES}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize("name", CONTEXT_DRAFTERS)
def test_nested_retrieval_is_lossless(name: str) -> None:
    """The target's own steps, written with the help of lookups."""
    rule = Lossless()
    drafter = retrieval(name)
    plan = speculative_plan(registry.plugin("drafter", "none").cls(), rule, nested=drafter)
    options = {"prompt": REPEATING, "split": "paragraph", "samples": SAMPLES // 2}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.6, top_k=3)], ids=str)
def test_copies_of_earlier_answers_are_lossless(sampling: Sampling) -> None:
    """Each answer is kept and later ones copy it, so that likely answers are drafted ever more often."""
    rule, store = Lossless(), GrowingStore(1 << 20)
    plan = remembering(speculative_plan(Suffix(remember=1), rule), store)
    options = {"prompt": REPEATING, "draft_length": 3, "samples": SAMPLES}
    assert p_value(TOY, plan, rule, sampling, **options) > SURE
    found = store.of("").find(REPEATING, 8, len(REPEATING), 3)
    # the whole prompt was found, with several answers
    assert found is not None and len(found[1]) > 1


def test_copies_of_earlier_answers_that_are_accepted_without_a_test_are_detected() -> None:
    """Such copies are what the target is most likely to write, so a rule has to be far off to show."""
    rule = Believing(share=0.5)
    plan = remembering(speculative_plan(Suffix(remember=1), rule), GrowingStore(1 << 20))
    options = {"prompt": REPEATING, "draft_length": 3, "samples": FEWER}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) < 1e-12


def remembering(plan: MakePlan, store: GrowingStore) -> MakePlan:
    """Return a plan that keeps each answer for the next one, as a run with ``remember`` does."""

    def made(context: Context, kit: Kit, length: int, pace: Pace) -> Plan[Outcome]:
        prompt = tuple(context.tokens)
        given = replace(kit, earlier=store.of(""))
        outcome = yield from plan(context, given, length, pace)
        store.add("", [*prompt, *outcome.tokens])
        return outcome

    return made


def test_copies_accepted_without_a_test_are_detected() -> None:
    """The wrong rule on the same prompt: so few samples are enough to tell."""
    rule = Believing()
    plan = speculative_plan(registry.plugin("drafter", "prompt_lookup").cls(), rule)
    options = {"prompt": REPEATING, "draft_length": 3, "samples": FEWER}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Believing(Lossless):
    """Keeps a copied token with a probability that is too high by ``share`` of its chance to be rejected."""

    share: float = 0.1

    def open(self, kit: Kit) -> LosslessSession:
        return BelievingSession(kit, self.share)


class BelievingSession(LosslessSession):
    def __init__(self, kit: Kit, share: float) -> None:
        super().__init__(kit)
        self.share = share

    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        chances = [self.kit.rng.random() < self.share for _ in scored.draft.tokens]
        return torch.tensor(chances)
