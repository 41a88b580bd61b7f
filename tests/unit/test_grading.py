"""Grading: finding the answer in a solution, and comparing it with the gold answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from math_verify import parse

from semspec.benchmarks._answers import after_thinking, chosen_letter, last_boxed
from semspec.benchmarks._grading import Worker
from tests.unit.grading_table import SOLUTIONS, TABLE


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_the_table_is_graded_as_a_person_would(worker: Worker) -> None:
    wrong = [
        (gold, answer, f"should be {correct}")
        for gold, answer, correct in TABLE
        if worker.same(gold, answer) is not correct
    ]
    assert not wrong
    assert len(set(TABLE)) == len(TABLE) >= 150
    assert sum(not correct for _, _, correct in TABLE) >= 60


def test_the_box_that_is_graded_is_the_last_one_however_it_is_written(worker: Worker) -> None:
    wrong = [
        (gold, text, f"should be {correct}")
        for gold, text, correct in SOLUTIONS
        if worker.same(gold, last_boxed(text) or "") is not correct
    ]
    assert not wrong


def test_percent_signs_count_though_math_verify_drops_them_beside_hydra(worker: Worker) -> None:
    assert version("antlr4-python3-runtime") == "4.9.3"  # what hydra-core asks for
    # when this fails, math-verify reads percentages again: see whether ours is still needed
    assert parse("$50\\%$")[0] == 50
    assert worker.same("0.5", "50\\%") is True
    assert worker.same("50\\%", "0.5") is True
    assert worker.same("50\\%", "0.5\\%") is False


def test_an_answer_that_takes_for_ever_is_stopped_and_the_next_one_graded() -> None:
    worker = Worker(limit=1.0)
    try:
        assert worker.same("1", "1") is True
        first = worker.process
        began = time.monotonic()
        assert worker.same("1", "\\sum_{n=1}^{10^{9}} \\frac{\\sin(n^{n^{n}})}{n!}") is None
        assert time.monotonic() - began < 5
        assert first is not None and first.poll() is not None  # killed, not left behind
        assert worker.same("\\frac12", "0.5") is True
    finally:
        worker.close()


def test_only_what_follows_the_thinking_counts() -> None:
    turn = "<think>\nIs it \\boxed{3}?\n</think>\n\nIt is \\boxed{4}."
    assert last_boxed(after_thinking(turn)) == "4"
    assert last_boxed(after_thinking("<think>\nIs it \\boxed{3}?")) is None
    assert last_boxed(after_thinking("no thinking at all: \\boxed{5}")) == "5"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{1} and \\boxed{2", "1"),  # the last one that ends
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed {4}", "4"),
        ("\\boxed{1} and \\boxed\n{2}", "2"),
        ("\\boxed{1} and \\boxed 2", "2"),
        ("$\\boxed x$", "x"),
        ("\\(\\boxed 12.5\\)", "12.5"),
        ("\\boxed (1,2).", "(1,2)"),
        ("\\boxed\\text{A}", "\\text{A}"),
        ("\\boxed{1}, as \\boxed asks, \\boxed ... \\boxed", "1"),
        ("\\boxed{a\\\\}", "a\\\\"),  # the backslash before the brace is escaped itself
        ("\\boxed{a\\\\\\}}", "a\\\\\\}"),
        ("\\boxed{1} and \\boxed{a\\}", "1"),
        ("boxed{1}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_counts(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


def test_a_text_that_says_nothing_but_boxes_is_read_at_once() -> None:
    began = time.monotonic()
    assert last_boxed("\\boxed{1}" + "\\boxed{" * 30_000) == "1"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("so \\boxed{C}", "C"),
        ("so \\boxed{(C)}", "C"),
        ("so \\boxed{\\text{C}}", "C"),
        ("so \\boxed{\\text{(C)}}", "C"),
        ("so \\boxed{C) a cat}", "C"),
        ("so \\boxed{C. a cat}", "C"),
        ("so \\boxed{a cat}", "C"),  # the option's text
        ("\\boxed{A}, no, \\boxed{B}", "B"),
        ("so \\boxed{E}", None),  # there is no E
        ("so \\boxed{Cat}", None),
        ("so \\boxed{42}", None),
        ("The answer is (B).", "B"),
        ("**Answer: D**", "D"),
        ("the answer is A cat, I think; no: the answer is B", "B"),
        ("Answer: E", None),
        ("A cat sat", None),
        ("the answer depends on C", None),
        ("", None),
    ],
)
def test_the_chosen_letter_is_found(text: str, letter: str | None) -> None:
    assert chosen_letter(text, ["a dog", "a hen", "a cat", "a cow"]) == letter
