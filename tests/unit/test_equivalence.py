"""Equivalence within a margin: two one-sided tests, and the sentences of compare about them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from semspec.cli.compare import sentences
from semspec.report.comparison import compare
from semspec.results.equivalence import agreement, lengths, sentence, shares, thinking_of
from tests.support.runs import make_run


def test_many_alike_answers_are_equivalent_and_few_are_not() -> None:
    right = [[i % 10 != 0] for i in range(1_000)]
    found = shares("pass@1", right, right, 0.02, paired=True)
    assert found is not None and found.verdict == "equivalent" and found.p < 0.05
    few = shares("pass@1", right[:20], right[:20], 0.02, paired=True)
    assert few is not None and few.verdict == "unknown" and few.p > 0.05
    worse = [[r and i % 4 != 1] for i, (r,) in enumerate(right)]
    beyond = shares("pass@1", right, worse, 0.02, paired=True)
    assert beyond is not None and beyond.verdict == "beyond" and beyond.difference < -0.2


@pytest.mark.parametrize("paired", [True, False])
def test_a_difference_at_the_margin_is_called_equivalent_once_in_twenty(paired: bool) -> None:
    """The error rate of the two one-sided tests where the truth is the margin itself."""
    rng, wrong, runs = random.Random(5), 0, 400
    for _ in range(runs):
        a = [rng.gauss(100, 10) for _ in range(30)]
        b = [1.1 * x + rng.gauss(0, 5) if paired else 1.1 * rng.gauss(100, 10) for x in a]
        found = lengths("length", a, b, 0.1, paired)
        assert found is not None
        wrong += found.verdict == "equivalent"
        assert (found.verdict == "equivalent") == (found.p <= 0.05)
    assert 5 <= wrong <= 40  # 20 are expected


def test_lengths_need_values_and_a_length() -> None:
    assert lengths("length", [1.0] * 5, [1.0] * 5, 0.1, True) is None
    assert lengths("length", [0.0] * 9, [1.0] * 9, 0.1, True) is None
    same = lengths("length", [5.0] * 9, [5.0] * 9, 0.1, True)
    assert same is not None and same.verdict == "equivalent" and same.p < 1e-6


def test_agreement_has_to_be_shown() -> None:
    found = agreement([[True]] * 500, 0.02)
    assert found is not None and found.verdict == "equivalent"
    part = agreement([[True]] * 90 + [[False]] * 10, 0.02)
    assert part is not None and part.verdict == "beyond"
    assert agreement([], 0.02) is None


def test_thinking_is_what_stands_before_its_end() -> None:
    assert thinking_of("<think>\nabc</think>d") == 11
    assert thinking_of("<think> without end") == 19
    assert thinking_of("none") is None


def test_compare_says_what_is_equivalent(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", 40), make_run(tmp_path / "b", 40)
    found = compare(a, b, margin=0.2)
    about = {one.about: one.verdict for one in found.equivalence}
    assert about["pass@1"] == about["length"] == about["agreement"] == "equivalent"
    told = "\n".join(sentences(found))
    assert "Equivalence:" in told and "pass@1: equivalent within 20 points" in told
    tight = compare(a, b, margin=0.001)
    assert "not shown to be within 0.1 points" in "\n".join(map(sentence, tight.equivalence))
