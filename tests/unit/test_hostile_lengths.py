"""Texts of 100,000 characters do not make any pattern slow: answers, data sets, error lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from semspec.benchmarks import _answers, _data, _judge, _math_worker
from semspec.benchmarks.humaneval import HumanEval, written_code
from semspec.choices.names import quoted
from semspec.protocols import BenchmarkProblem
from semspec.report import transcript
from semspec.rules import triggers
from semspec.splitters.sentence import SentenceBoundary
from semspec.storage import provenance
from semspec.world.residues import Residues
from semspec.world.reuse import Editing, Grounded
from semspec.world.weekdays import Weekdays

LENGTH = 100_000
QUESTION = _data.choice_question("Which?", ["a", "b", "c"])
CODE = BenchmarkProblem("1", "?", '{"head": "def f():", "test": "", "entry": "f"}')


def letter(text: str) -> str | None:
    return _answers.chosen_letter(text, ["a", "b", "c"])


def boxed_letter(text: str) -> str | None:
    return letter(f"\\boxed{{{text}}}")


def masked_option(text: str) -> list[str]:
    return provenance.masked(["run", text])


def masked_flag(text: str) -> list[str]:
    return provenance.masked([f"--{text}", "x"])


def sentences(text: str) -> None:
    boundary = SentenceBoundary(lambda _: text, 1 << 30)
    boundary.feed(0)


READERS: dict[Callable[[str], Any], list[str]] = {
    letter: ["answer\n", "answer is ", "answer : ** (", " ", "*"],
    boxed_letter: [" ", "(", "A ", "\\text{", "\\text "],
    _answers.last_boxed: ["\\boxed", "\\boxed ", "\\boxed{", "\\boxed\\!", "\\boxed\\a{", " ", "-", "\\}"],
    lambda t: written_code(t, "f"): ["```", "```\n", "``` ", "```python ", "```python\n", "def f ", " "],
    lambda t: written_code(f"```{t}x\n", "f"): [" ", "\t", "python", "python3", "{"],
    lambda t: HumanEval().grade(CODE, "<think>" + t): ["</think", "```python\n"],
    _judge._RATING.findall: ["[[1", "[[", "1", "1.1"],
    _data.options_of: ["A) a\n", "\nA) ", QUESTION],
    _math_worker._plain: ["\\text{", "\\text ", " ", "\\!", "\\dfrac", "~"],
    _math_worker._trimmed: ["$", " ", "\\(", "."],
    _math_worker._without_percent: ["percent ", "%", "% ", "\\text{ ", " ", "percent}"],
    _math_worker._says_words: ["a", "ab ", "ab-", "a1", "é"],
    _math_worker._letters: ["_", "a_", "\\text{"],
    _math_worker._BASED.fullmatch: ["1", "F_", "1_{1"],
    masked_option: ["token", "a.", "-", "token.", "hf_", "://a", "://", "sk-", "/", "api_key-"],
    masked_flag: ["token", "a.", "-", "/", "_"],
    provenance.without_folders: ["/", "/a", "~/", "./", "../", "a/", "/a,", "=/"],
    transcript._looks_over: ["\n", " ", ".", ")", ".)", ". ", "\n "],
    quoted: ["\\", "'", "\\'", "${", "\\${"],
    lambda t: triggers._count(["wait", "hold on"], t): ["wait", "hold ", "wait "],
    Residues().find: ["Modulo 100, let a=00, ", "Modulo 100, let a=00, b. Find a", ". Find "],
    Weekdays().find: ["Counting weekdays, let a=Monday, ", "Counting weekdays, let a=Monday, b. Find "],
    Editing().find: ["Here are all the facts:\n\n", "\n\nNow let a="],
    Grounded().find: ["Let us look at the facts: ", " From these facts, give a", ", a"],
    sentences: [".", "a.", ". ", "。", ")", "a", "! A"],
}  # fmt: skip
BEFORE = ("", "answer", "\\boxed", "percent", "\\text", "://")


@pytest.mark.parametrize(
    ("read", "piece"),
    [
        pytest.param(read, piece, id=f"{number}-{piece[:20]!r}")
        for number, (read, pieces) in enumerate(READERS.items())
        for piece in pieces
    ],
)
def test_hostile_texts_are_read_in_no_time(read: Callable[[str], Any], piece: str) -> None:
    texts = [before + piece * (LENGTH // len(piece)) + "!" for before in BEFORE]
    for text in [*texts, texts[0][:-1]]:
        began = time.process_time()
        read(text)
        assert time.process_time() - began < 1, text[:20]
