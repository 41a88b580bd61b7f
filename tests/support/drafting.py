"""Test drafters in isolation: a kit, and drafts without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from semspec.engines.toy import Toy
from semspec.protocols import DraftSession, Kit, Plan
from semspec.types import Answer, Context, Draft, Query, Read, Room, Sampling, What
from tests.support.law import toy_kit


def kit_for(split: str = "token", step_cap: int = 512, **changes: Any) -> Kit:
    engine = Toy(vocabulary=4).models()["target"]
    kit = toy_kit(None, engine, Sampling(0.0), 0, split=split, step_cap=step_cap)
    return replace(kit, **changes)


def answerless(plan: Plan[Draft]) -> Draft:
    """Return the draft of a plan that queries no model."""
    with pytest.raises(StopIteration) as stop:
        next(plan)
    draft = stop.value.value
    assert isinstance(draft, Draft)
    return draft


@dataclass(slots=True)
class Script:
    """A target with scripted answers: state and top tokens by position, embeddings by token."""

    states: Sequence[Sequence[float]]
    tops: Sequence[Sequence[int]]
    embeddings: Mapping[int, Sequence[float]] = field(default_factory=dict)
    asked: list[Query] = field(default_factory=list)

    def read(self, read: Read, rows: slice, tokens: Sequence[int]) -> Any:
        if read.what is What.HIDDEN:
            return torch.tensor(self.states[rows])[:, None]
        if read.what is What.TOP_K:
            ids = torch.tensor(self.tops[rows])[:, : read.k]
            return ids, torch.zeros(ids.shape)
        assert read.what is What.EMBEDDINGS, read
        return torch.tensor([self.embeddings[token] for token in tokens])

    def draft(self, session: DraftSession, context: Context, room: Room) -> Draft:
        plan = session.draft(context, room)
        try:
            query = next(plan)
            while True:
                assert isinstance(query, Query)
                self.asked.append(query)
                rows = slice(query.rows_from, len(context))
                values = {read: self.read(read, rows, query.tokens) for read in query.reads}
                query = plan.send(Answer(values=values))
        except StopIteration as stop:
            draft: Draft = stop.value
            return draft
