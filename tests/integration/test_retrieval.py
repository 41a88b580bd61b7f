"""Retrieval on engine=hf: rows from real passes, embeddings from the real table, trees over the cache."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.results import reuse
from semspec.solver import Solver
from tests.support.pair import configuration

LIMIT = 120


def solve(mode: str, *overrides: str) -> tuple[list[list[int]], dict[str, int]]:
    made = configuration("temperature=0", f"max_new_tokens={LIMIT}", *overrides)
    problems = list(islice(made.benchmark.problems(), 2))
    with Solver(made) as solver:
        solutions = list(solver.solve(problems, mode))  # type: ignore[arg-type]
    rounds = [r for s in solutions for r in s.outcome.rounds]
    return [s.outcome.tokens for s in solutions], reuse.count(rounds)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return solve("plain")[0]


@pytest.mark.parametrize("drafter", ["adapld", "hybrid", "rest", "dresd"])
def test_greedy_output_is_the_targets_own(plain: list[list[int]], drafter: str) -> None:
    tokens, counts = solve("speculative", f"draft={drafter}", "split=token", "accept=greedy")
    assert tokens == plain
    assert counts.get("tokens", 0) > 0.3 * sum(map(len, plain)), "hardly anything was reused"


def test_copied_steps_and_nested_lookups_write_the_targets_text(plain: list[list[int]]) -> None:
    told = ("draft=prompt_lookup", "split=paragraph", "accept=lossless", "nested=adapld")
    assert solve("speculative", *told)[0] == plain
