"""Whatever a drafter finds in its context, what comes out has exactly the target's law.

A prompt that repeats itself, so that every drafter finds something in nearly every round.
"""

from __future__ import annotations

import pytest

from semspec import registry
from semspec.engines.toy import Toy
from semspec.rules.lossless import Lossless
from semspec.types import Sampling
from tests.statistical.test_laws import SURE
from tests.support.law import p_value, speculative_plan

TOY = Toy(vocabulary=4, seed=3)
REPEATING = (0, 1, 3, 0, 1, 2, 0, 1)
CONTEXT_DRAFTERS = [
    name
    for name, plugin in registry.plugins("drafter").items()
    if not plugin.cls.uses and not plugin.cls.plain
]


@pytest.mark.parametrize("name", CONTEXT_DRAFTERS)
@pytest.mark.parametrize("split", ["token", "paragraph"])
def test_retrieval_is_lossless(name: str, split: str) -> None:
    rule = Lossless()
    plan = speculative_plan(registry.plugin("drafter", name).cls(), rule)
    options = {"prompt": REPEATING, "split": split, "draft_length": 3, "samples": 3_000}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE


@pytest.mark.parametrize("name", CONTEXT_DRAFTERS)
def test_nested_retrieval_is_lossless(name: str) -> None:
    """The target's own steps, written with the help of lookups."""
    rule = Lossless()
    drafter = registry.plugin("drafter", name).cls()
    plan = speculative_plan(registry.plugin("drafter", "none").cls(), rule, nested=drafter)
    options = {"prompt": REPEATING, "split": "paragraph", "samples": 3_000}
    assert p_value(TOY, plan, rule, Sampling(1.0), **options) > SURE
