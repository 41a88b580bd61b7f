"""Schema-bound answers when the prompt lets the model decide whether to think first: its first token shows which."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semspec.config import build, compose
from semspec.models.text import OPEN
from semspec.serve.choices import Choice
from semspec.serve.task import Task
from semspec.solver import Solver
from semspec.types import Answer, Grammar, Query


@pytest.fixture(scope="module")
def solver() -> Iterator[Solver]:
    with Solver(build(compose(["model=tiny", "draft=tiny"]))) as one:
        yield one


def begun(solver: Solver, first: str) -> tuple[Choice, list[int], list[int]]:
    """Return a choice whose target begins with that text, the ids behind its prompt, and those of the text."""
    ids, answered = solver.text.encode("What is k?"), solver.text.encode(first)[:1]
    task = Task(
        solver=solver,
        name="a",
        prompt="What is k?",
        budget=50,
        grammar=Grammar("json_schema", "{}"),
    )
    choice = Choice(task, solver.context(ids, None))
    plan = choice._begun(choice.context)
    asked = next(plan)
    assert isinstance(asked, Query) and asked.generate is not None
    assert asked.generate.limit == 1 and asked.generate.grammar is None
    with pytest.raises(StopIteration) as stop:
        plan.send(Answer(answered))
    return choice, list(stop.value.value.tokens[len(ids) :]), answered


def test_a_model_that_begins_by_thinking_thinks(solver: Solver) -> None:
    choice, behind, answered = begun(solver, f"{OPEN}\n")
    assert solver.text.decode(answered) == OPEN
    assert choice.reader.thinks and behind == answered == choice.tokens
    assert choice.rounds[0].handed == answered and choice.rounds[0].passes == {"target": 1}


def test_one_that_does_not_is_asked_again_for_its_answer(solver: Solver) -> None:
    choice, behind, _ = begun(solver, "The answer")
    assert not choice.reader.thinks and not behind and not choice.tokens and not choice.rounds
