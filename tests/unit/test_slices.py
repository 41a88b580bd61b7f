"""Answers computed in slices equal those computed at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.slices import sliced
from semspec.driver import Driver, Inbox
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.protocols import Plan
from semspec.splitters.paragraph import Paragraph
from semspec.types import Answer, Context, Generate, Query, Read, Sampling, What
from tests.support.law import piece

READS = tuple(map(Read, (What.PROBS, What.LOGPROBS, What.HIDDEN)))


def asking(seed: int, limit: int, units: int, reads: tuple[Read, ...]) -> Plan[Answer]:
    boundary = Paragraph().open(piece, 6) if units else None
    answer: Answer = yield Query(
        "target",
        Context(1, [0, 1]),
        Sampling(1.0),
        random.Random(seed),
        tokens=[3],
        reads=reads,
        generate=Generate(limit, boundary, units or 1),
        purpose="write",
    )
    return answer


def run(plan: Plan[Answer], stop: bool = False) -> Answer:
    ((done),) = Driver(dict(Toy(stop=stop).models())).run([(Context(1, [0, 1]), plan)])  # type: ignore[arg-type]
    return done.value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.integers(0, 30), st.integers(0, 3), st.integers(1, 9), st.booleans())
def test_slices_change_nothing(seed: int, limit: int, units: int, most: int, stop: bool) -> None:
    reads = READS if limit else ()
    whole = run(asking(seed, limit, units, reads), stop)
    heard: list[int] = []
    plan = sliced(asking(seed, limit, units, reads), most, lambda query, token: heard.append(token))
    parts = run(plan, stop)
    assert (parts.tokens, parts.ends, parts.finish) == (whole.tokens, whole.ends, whole.finish)
    assert heard == whole.tokens
    for read in reads:
        assert torch.equal(parts[read], whole[read])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.integers(1, 30), st.integers(0, 3), st.lists(st.booleans()))
def test_pauses_change_nothing_and_slices_wait_for_them(seed: int, limit: int, units: int, waits: list[bool]) -> None:  # fmt: skip
    whole = run(asking(seed, limit, units, READS))
    sizes: list[int] = []

    def told(plan: Plan[Answer]) -> Plan[Answer]:
        asked, answer = next(plan), None
        try:
            while True:
                answer = yield asked
                sizes.append(len(answer.tokens))
                asked = plan.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    pauses = iter(waits)
    parts = run(told(sliced(asking(seed, limit, units, READS), 2, None, lambda: next(pauses, False))))  # fmt: skip
    assert (parts.tokens, parts.ends, parts.finish) == (whole.tokens, whole.ends, whole.finish)
    for read in READS:
        assert torch.equal(parts[read], whole[read])
    assert sum(sizes) == len(whole.tokens)
    if not any(waits):
        assert sizes == [len(whole.tokens)]  # nobody waits: one question


def test_reads_over_whole_units_are_asked_at_once() -> None:
    pooled = (Read(What.POOLED),)
    assert torch.equal(run(sliced(asking(3, 20, 2, pooled), 2))[pooled[0]], run(asking(3, 20, 2, pooled))[pooled[0]])  # fmt: skip


def two_at_once() -> Plan[list[list[int]]]:
    def query(model: str, limit: int) -> Query:
        own = Context(1, [0, 1]), Sampling(1.0), random.Random(limit)
        return Query(model, *own, generate=Generate(limit))

    answers = yield query("target", 7), query("draft", 3)
    return [answer.tokens for answer in answers]


def test_questions_side_by_side_are_sliced_side_by_side() -> None:
    driver = Driver(dict(Toy().models()))  # type: ignore[arg-type]
    (whole,) = driver.run([(Context(1, [0, 1]), two_at_once())])
    (parts,) = driver.run([(Context(1, [0, 1]), sliced(two_at_once(), 2))])
    assert parts.value == whole.value
    assert list(map(len, whole.value)) == [7, 3]


def test_models_that_hold_up_nobody_are_asked_at_once() -> None:
    plan = sliced(two_at_once(), 2, at_once=("target",))
    asked = next(plan)
    assert isinstance(asked, tuple)
    limits = {query.model: query.generate.limit for query in asked if query.generate}
    assert limits == {"target": 7, "draft": 2}
    plan.close()
    driver = Driver(dict(Toy().models()))  # type: ignore[arg-type]
    (whole,) = driver.run([(Context(1, [0, 1]), two_at_once())])
    (parts,) = driver.run([(Context(1, [0, 1]), sliced(two_at_once(), 2, at_once=("target",)))])
    assert parts.value == whole.value


def test_a_plan_without_questions_and_an_error_pass_through() -> None:
    def nothing() -> Plan[int]:
        yield from ()
        return 3

    def catching() -> Plan[str]:
        try:
            yield Query(
                "target", Context(1, [0]), Sampling(), random.Random(0), generate=Generate(4)
            )
        except UserError as error:
            return str(error)
        return "no error"

    ((done),) = Driver(dict(Toy().models())).run([(Context(1, [0]), sliced(nothing(), 2))])  # type: ignore[arg-type]
    assert done.value == 3
    plan = sliced(catching(), 2)
    next(plan)
    with pytest.raises(StopIteration, match="gone"):
        plan.throw(UserError("gone"))


# ---- plans that arrive ------------------------------------------------------------------------------


def writing(
    seed: int, rounds: int, act: Callable[[int], None] = lambda turn: None
) -> Plan[list[int]]:
    tokens: list[int] = []
    for turn in range(rounds):
        act(turn)
        own = Context(seed, [0, 1]), Sampling(1.0), random.Random(f"{seed} {turn}")
        answer: Answer = yield Query("target", *own, tokens=tokens, generate=Generate(2))
        tokens += answer.tokens
    return tokens


def test_a_plan_that_arrives_does_not_wait_for_those_under_way() -> None:
    inbox: Inbox[list[int]] = Inbox()
    inbox.put(Context(1, [0, 1]), writing(1, 40, lambda turn: put(turn)))

    def put(turn: int) -> None:
        if turn == 5:
            inbox.put(Context(2, [0, 1]), writing(2, 3))
            inbox.close()

    ended = [d.context.key for d in Driver(dict(Toy().models())).run(inbox, 2)]  # type: ignore[arg-type]
    assert ended == [2, 1]


def test_an_error_ends_its_own_plan_alone() -> None:
    def failing() -> Plan[list[int]]:
        yield Query(
            "target", Context(9, [0, 1]), Sampling(1.0), random.Random(0), generate=Generate(1)
        )
        raise UserError("mine")

    inbox: Inbox[list[int]] = Inbox()
    inbox.put(Context(1, [0, 1]), writing(1, 5))
    inbox.put(Context(2, [0, 1]), failing())
    inbox.close()
    done = {d.context.key: d for d in Driver(dict(Toy().models())).run(inbox, 2)}  # type: ignore[arg-type]
    assert isinstance(done[2].error, UserError) and done[1].error is None
    assert len(done[1].value) == 10


def test_a_plan_that_is_given_up_is_closed_and_forgotten() -> None:
    inbox: Inbox[list[int]] = Inbox()
    contexts = [Context(key, [0, 1]) for key in range(3)]
    closed: list[str] = []

    def endless() -> Plan[list[int]]:
        try:
            while True:
                yield from writing(7, 1)
        finally:
            closed.append("running")

    def act(turn: int) -> None:
        if turn == 3:
            assert inbox.drop(contexts[2])  # it has not begun
            assert not inbox.drop(contexts[0])
            inbox.close()

    inbox.put(contexts[0], endless())
    inbox.put(contexts[1], writing(1, 6, act))
    inbox.put(contexts[2], writing(2, 1))
    forgotten: list[int] = []
    driver = Driver(dict(Toy().models()))  # type: ignore[arg-type]
    turns = driver.turns(inbox, 2, lambda context: forgotten.append(context.key))
    assert [d.context.key for d in turns if d is not None] == [1]
    assert closed == ["running"] and forgotten == [0, 1]
