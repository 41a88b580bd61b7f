"""Where the thinking ends, and which model writes the rest."""

from __future__ import annotations

from itertools import islice

import pytest

from semspec.decoding.thinking import Thinking
from semspec.solver import Solver
from tests.support.pair import configuration

PIECES = ["so", "</", "think", ">", "</think>", " x</think>\n\n", "<think>", "</thin", "k>"]


@pytest.mark.parametrize(
    ("tokens", "at"),
    [
        ([0, 4, 0], 2),
        ([0, 1, 2, 3], 4),
        ([5], 1),
        ([0, 6, 0], None),
        ([7, 8, 4], 2),
        ([7, 3], None),
    ],
)
def test_the_tag_is_found_in_one_token_or_several(tokens: list[int], at: int | None) -> None:
    assert Thinking(PIECES.__getitem__).closes_at(tokens) == at
    bit_by_bit = Thinking(PIECES.__getitem__)
    for number, token in enumerate(tokens, start=1):
        assert bit_by_bit.closes_at([token]) == (1 if number == at else None)
        bit_by_bit.feed([token])
        assert bit_by_bit.over == (at is not None and number >= at)
        if bit_by_bit.over:
            break


@pytest.mark.parametrize("draft_length", [1, 8])
def test_the_answer_is_the_targets_alone(draft_length: int) -> None:
    config = configuration(
        "accept=random",
        "accept.rate=1",
        "answer_by=target",
        f"draft_length={draft_length}",
        "problems=3",
    )
    problems = list(islice(config.benchmark.problems(), 3))
    with Solver(config) as solver:
        for solved in solver.solve(problems, "speculative"):
            written = ""
            for done in solved.outcome.rounds:
                for i, token in enumerate(done.tokens):
                    if "</think>\n\n" in written:
                        assert i >= len(done.kept), "the draft wrote some of the answer"
                    written += solver.text.piece(token)
            assert "</think>" in written and "boxed" in written
            assert solved.outcome.rounds[0].kept, "and the draft wrote the thinking"
