"""The rival engines on the embedded pair: each runs to the end, and the claims about it hold."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.models.text import Text
from semspec.protocols import BenchmarkProblem
from semspec.solver import Solution, Solver
from tests.support.deep import samples
from tests.support.pair import TARGET, configuration, reference_outputs

LIMIT = 300
PROBLEMS = samples(quick=2, deep=4)
DEEP = pytest.mark.deep
pytestmark = pytest.mark.deep(quick=True)


@pytest.fixture(scope="module")
def problems() -> list[BenchmarkProblem]:
    return list(islice(configuration().benchmark.problems(), PROBLEMS))


def solve(problems: list[BenchmarkProblem], *overrides: str) -> list[Solution]:
    with Solver(configuration(f"max_new_tokens={LIMIT}", *overrides)) as solver:
        return sorted(solver.solve(problems, "speculative"), key=lambda s: s.problem.id)


@pytest.mark.parametrize(
    "rule",
    [
        ["judge", "accept.threshold=2", "accept.first_by_target=1"],
        ["judge", "accept.threshold=3", "accept.score=average", "salvage=true"],
        ["triggers", "accept.negative=[now,since]"],
        ["token"],
        ["rsd"],
        ["rsd", "salvage=true", "ahead=true", "nested=lm"],
        ["lookahead"],
        ["lookahead", "accept.compare=oracle", "ahead=true"],
        ["lookahead", "accept.compare=exact", "split=sentence"],
    ],
    ids=" ".join,
)
@DEEP
def test_every_rival_runs_to_the_end(problems: list[BenchmarkProblem], rule: list[str]) -> None:
    made = [f"accept={rule[0]}", *rule[1:], "draft_length=2"]
    one = solve(problems, *made)
    assert all(s.outcome.finish == "eos" for s in one)
    assert any(r.kept for s in one for r in s.outcome.rounds), "nothing was ever kept"
    assert any(r.written or r.handed for s in one for r in s.outcome.rounds)
    many = solve(problems, *made, "concurrency=4")
    # batches may round differently, so a text may part; most do not
    same = sum(a.outcome.tokens == b.outcome.tokens for a, b in zip(one, many, strict=True))
    assert same >= PROBLEMS - 1


@pytest.mark.parametrize("split", ["paragraph", pytest.param("sentence", marks=DEEP)])
def test_token_speculation_is_lossless(problems: list[BenchmarkProblem], split: str) -> None:
    text = Text(str(TARGET))
    outputs = reference_outputs([text.prompt(p.question)[1] for p in problems], LIMIT)
    found = solve(problems, "accept=token", "temperature=0", f"split={split}", "draft_length=2")
    wanted = dict(zip((p.id for p in problems), outputs, strict=True))
    assert {s.problem.id: s.outcome.tokens for s in found} == wanted


def test_the_target_writes_the_first_steps(problems: list[BenchmarkProblem]) -> None:
    made = ["accept=judge", "accept.first_by_target=2", "accept.threshold=0"]
    for solution in solve(problems, *made):
        first = solution.outcome.rounds[0]
        assert not first.kept and len(first.handed_ends) == 2
        assert all(not r.handed for r in solution.outcome.rounds[1:]), "a threshold of 0 takes all"


def test_triggers_hand_over_for_the_asked_number_of_tokens(
    problems: list[BenchmarkProblem],
) -> None:
    made = ["accept=triggers", "accept.negative=[now,since]", "accept.tokens=7"]
    handed = [len(r.handed) for s in solve(problems, *made) for r in s.outcome.rounds if r.handed]
    assert handed and max(handed) <= 7 and handed.count(7) > len(handed) // 2


def test_a_judge_leaves_room_for_its_question(problems: list[BenchmarkProblem]) -> None:
    """Up to the very end of the models' context: the question has to fit behind it."""
    made = ["accept=judge", "accept.threshold=0", "engine.max_context=750"]
    (solution,) = solve(problems[:1], *made)
    assert solution.outcome.finish in ("eos", "budget")
