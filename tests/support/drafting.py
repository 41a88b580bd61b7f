"""Drafters on their own: a kit, and drafts that ask no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semspec.engines.toy import Toy
from semspec.protocols import Kit, Plan
from semspec.types import Draft, Sampling
from tests.support.law import toy_kit


def kit_for(split: str = "token", step_cap: int = 512, **changes: Any) -> Kit:
    engine = Toy(vocabulary=4).models()["target"]
    kit = toy_kit(None, engine, Sampling(0.0), 0, split=split, step_cap=step_cap)
    return replace(kit, **changes)


def answerless(plan: Plan[Draft]) -> Draft:
    """The draft of a plan that asks nothing."""
    with pytest.raises(StopIteration) as stop:
        next(plan)
    draft = stop.value.value
    assert isinstance(draft, Draft)
    return draft
