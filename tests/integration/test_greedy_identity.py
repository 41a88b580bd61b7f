"""Greedy speculative output equals the target's own, token for token, with every drafter."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.models.text import Text
from semspec.protocols import BenchmarkProblem
from semspec.solver import Solver
from tests.support.deep import samples
from tests.support.pair import TARGET, configuration, reference_outputs

LIMIT = 400
PROBLEMS = samples(quick=3, deep=5)
DEEP = pytest.mark.deep
pytestmark = pytest.mark.deep(quick=True)


@pytest.fixture(scope="module")
def problems() -> list[BenchmarkProblem]:
    return list(islice(configuration().benchmark.problems(), PROBLEMS))


@pytest.fixture(scope="module")
def reference(problems: list[BenchmarkProblem]) -> dict[str, list[int]]:
    text = Text(str(TARGET))
    outputs = reference_outputs([text.prompt(p.question)[1] for p in problems], LIMIT)
    assert all(out[-1] in text.stop_ids for out in outputs), "the pair ends its solutions"
    return {p.id: out for p, out in zip(problems, outputs, strict=True)}


def solve(problems: list[BenchmarkProblem], mode: str, *overrides: str) -> dict[str, list[int]]:
    made = configuration("temperature=0", f"max_new_tokens={LIMIT}", *overrides)
    with Solver(made) as solver:
        return {s.problem.id: s.outcome.tokens for s in solver.solve(problems, mode)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "concurrency", [pytest.param(1, marks=DEEP), pytest.param(2, marks=DEEP), 5]
)
def test_plain_decoding_equals_generate(
    problems: list[BenchmarkProblem], reference: dict[str, list[int]], concurrency: int
) -> None:
    assert solve(problems, "plain", f"concurrency={concurrency}") == reference


@pytest.mark.parametrize("rule", [pytest.param("greedy", marks=DEEP), "lossless"])
@pytest.mark.parametrize("concurrency", [1, pytest.param(3, marks=DEEP)])
@pytest.mark.parametrize(
    ("split", "draft_length"),
    [
        pytest.param("token", 1, marks=DEEP),
        ("token", 4),
        pytest.param("token", 9, marks=DEEP),
        pytest.param("sentence", 1, marks=DEEP),
        ("sentence", 2),
        pytest.param("paragraph", 1, marks=DEEP),
        ("paragraph", 2),
        pytest.param("paragraph", 4, marks=DEEP),
    ],
)
def test_speculative_output_equals_generate(
    problems: list[BenchmarkProblem],
    reference: dict[str, list[int]],
    split: str,
    draft_length: int,
    concurrency: int,
    rule: str,
) -> None:
    outputs = solve(
        problems,
        "speculative",
        f"accept={rule}",
        f"split={split}",
        f"draft_length={draft_length}",
        f"concurrency={concurrency}",
    )
    assert outputs == reference


@pytest.mark.parametrize("rule", [pytest.param("greedy", marks=DEEP), "lossless"])
@pytest.mark.parametrize("tree", [pytest.param("static", marks=DEEP), "dynamic"])
def test_trees_equal_generate(
    problems: list[BenchmarkProblem], reference: dict[str, list[int]], tree: str, rule: str
) -> None:
    arguments = (f"accept={rule}", "split=token", f"draft.tree={tree}")
    for concurrency in (1, 3):
        assert solve(problems, "speculative", *arguments, f"concurrency={concurrency}") == reference


@pytest.mark.parametrize(
    "rule", ["random", *(pytest.param(rule, marks=DEEP) for rule in ("oracle", "logprob"))]
)
def test_answers_do_not_depend_on_how_many_run_at_a_time(
    problems: list[BenchmarkProblem], rule: str
) -> None:
    def sampled(concurrency: int) -> dict[str, list[int]]:
        made = configuration(f"accept={rule}", f"concurrency={concurrency}", "max_new_tokens=200")
        with Solver(made) as solver:
            return {s.problem.id: s.outcome.tokens for s in solver.solve(problems, "speculative")}

    assert sampled(1) == sampled(4)
