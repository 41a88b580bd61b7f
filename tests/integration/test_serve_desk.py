"""Which requests the desk prepares on the event loop, and which may take long and get a thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from semspec.serve.errors import ApiError
from semspec.serve.preparing import Desk
from semspec.serve.requests import ChatRequest, parse
from semspec.serve.scheduling import Scheduler
from semspec.serve.settings import Settings
from semspec.solver import Solver
from tests.support.pair import configuration


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with Solver(configuration("engine=hf")) as solver:
        scheduler = Scheduler(lambda: solver, 1)
        scheduler.solver = solver  # nothing runs here: it is prepared only
        yield Desk(scheduler, Settings(name="pair"))


def asked(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Find k."}], **fields}
    return parse(ChatRequest, json.dumps(body).encode())


def test_what_changes_nothing_is_at_hand(desk: Desk) -> None:
    assert desk.at_hand(asked())
    assert desk.at_hand(asked(seed=3, max_tokens=9, ignore_eos=True, semspec={"off": True}))


def test_a_rule_is_at_hand_once_it_is_bound(desk: Desk) -> None:
    request = asked(semspec={"rule": "logprob", "threshold": -2.5}, temperature=0.7)
    assert not desk.at_hand(request)
    ((choice,),) = desk.prepare(request)
    assert desk.at_hand(request)
    ((again,),) = desk.prepare(request)
    assert again.task.solver.rule is choice.task.solver.rule
    assert not desk.at_hand(asked(semspec={"rule": "logprob", "threshold": -2}))


def test_forms_of_calls_are_looked_for_in_a_thread(desk: Desk) -> None:
    tool = {"type": "function", "function": {"name": "find"}}
    assert not desk.at_hand(asked(tools=[tool]))


def test_what_cannot_be_is_refused_by_either(desk: Desk) -> None:
    for ask in (desk.at_hand, desk.prepare):
        with pytest.raises(ApiError) as refused:
            ask(asked(semspec={"rule": "nothing"}))
        assert refused.value.param == "semspec.rule"


def test_an_answer_with_a_seed_has_drafts_of_fixed_lengths() -> None:
    with Solver(
        configuration("engine=hf", "adaptive=true", "split=token", "accept=lossless")
    ) as solver:
        scheduler = Scheduler(lambda: solver, 1)
        scheduler.solver = solver
        desk = Desk(scheduler, Settings(name="pair"))
        ((free,),) = desk.prepare(asked())
        ((seeded,),) = desk.prepare(asked(seed=3))
        ((longer,),) = desk.prepare(asked(seed=3, semspec={"draft_length": 3}))
    assert free.task.solver.pacing.economies and free.task.solver.draft_length == 32
    assert not seeded.task.solver.pacing.economies and seeded.task.solver.draft_length == 1
    assert longer.task.solver.draft_length == 3


def test_every_answer_without_a_seed_has_random_numbers_of_its_own(desk: Desk) -> None:
    seeds = {desk.prepare(asked())[0][0].task.solver.config.seed for _ in range(8)}
    assert len(seeds) == 8
    ((choice,),) = desk.prepare(asked(seed=7))
    assert choice.task.solver.config.seed == 7
