"""Tasks that repeat their question: true solutions are recognised, and they do repeat it."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec import registry, world
from semspec.models.text import Text
from semspec.storage.packaged import beside_package

TASKS = sorted(world.TASKS)
seeds = st.integers(0, 10**9)


def solved(task: str, seed: int) -> tuple[world.ReuseProblem, list[str]]:
    rng = random.Random(seed)
    problem = world.TASKS[task].make(rng)
    return problem, world.TASKS[task].solve(rng, problem)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_a_solution_is_true_and_in_order_step_by_step(task: str, seed: int) -> None:
    problem, steps = solved(task, seed)
    prompt = f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert world.find_problem(prompt) == problem
    before: list[world.Meaning] = []
    for part in world.split_steps(world.render_solution(problem, steps)):
        said = world.meaning(problem, part)
        assert world.is_next(problem, before, said), (part, said)
        assert said is not None
        before.append(said)
    assert before[-1] == ("answer", problem.answer)


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=100, deadline=None)
@given(seed=seeds, pick=st.integers(0, 10**6))
def test_a_changed_missing_or_moved_line_is_detected(task: str, seed: int, pick: int) -> None:
    problem, _ = solved(task, seed)
    kind, lines = world.TASKS[task], list(problem.lines)
    at = pick % len(lines)
    name = lines[at].partition("=")[0][-1]
    value = problem.values[name]
    other = "Monday" if value == "Sunday" else "Sunday" if value.endswith("day") else "07"
    changed = lines[at].replace(f"{name}={value}", f"{name}={other}")
    assert kind.is_true(problem, kind.meaning(changed)) == (other == value)
    before = [kind.meaning(line) for line in lines[:at]]
    known = [said for said in before if said is not None]
    assert len(known) == at
    assert kind.is_next(problem, known, kind.meaning(lines[at]))
    if at + 1 < len(lines):
        assert not kind.is_next(problem, known, kind.meaning(lines[at + 1]))
        final = kind.meaning(kind.solve(random.Random(0), problem)[-1])
        assert not kind.is_next(problem, known, final)


def test_an_edit_changes_one_line_and_nothing_else() -> None:
    problem, steps = solved("editing", 5)
    listed = problem.question.split("\n\n")[1:-1]
    pairs = list(zip(listed, steps, strict=False))
    assert len(pairs) == len(problem.lines)
    assert sum(a != b for a, b in pairs) == 1
    assert problem.given == "\n\n".join(listed)


@pytest.mark.parametrize(
    ("task", "share"), [("editing", 0.7), ("grounded", 0.5)], ids=["editing", "grounded"]
)
def test_most_of_a_solution_is_in_its_question(task: str, share: float) -> None:
    """Runs of four tokens, as the embedded pair's tokenizer writes them."""
    text = Text(str(beside_package("hub_artifacts") / "tiny-target"))

    def repeated(question: str, solution: str) -> float:
        asked, written = text.encode(question), text.encode(solution)
        known = {tuple(asked[i : i + 4]) for i in range(len(asked) - 3)}
        runs = [tuple(written[i : i + 4]) for i in range(len(written) - 3)]
        return sum(run in known for run in runs) / len(runs)

    found = [
        repeated(p.question, world.render_solution(p, steps))
        for p, steps in (solved(task, seed) for seed in range(50))
    ]
    assert sum(found) / len(found) > share
    chains = world.DOMAINS["residues"]
    p = chains.make(random.Random(1))
    alone = repeated(p.question, world.render_solution(p, chains.solve(random.Random(1), p)))
    assert alone < 0.1


@pytest.mark.parametrize("task", TASKS)
def test_a_right_answer_with_a_wrong_line_is_wrong(task: str) -> None:
    benchmark = registry.plugin("benchmark", task).cls()
    for posed in islice(benchmark.problems(), 10):
        problem = world.find_problem(posed.question)
        assert isinstance(problem, world.ReuseProblem)
        steps = world.TASKS[task].solve(random.Random(0), problem)
        right = benchmark.grade(posed, world.render_solution(problem, steps))
        assert right.correct is True
        assert right.details["steps"] == right.details["steps_true"] == len(steps) + 1
        missing = benchmark.grade(posed, world.render_solution(problem, steps[1:]))
        assert missing.correct is False
