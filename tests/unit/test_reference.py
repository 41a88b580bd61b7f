"""Copies from texts that come with a problem, worked by hand; and which drafters get these texts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import semspec
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.drafters.reference import FOUND, Reference, beside
from semspec.errors import UserError
from semspec.protocols import BenchmarkProblem
from semspec.results import reuse
from semspec.solver import Solver
from semspec.types import Context, Draft, Room
from tests.support.binding import run_of
from tests.support.drafting import answerless, kit_for

ROOM = Room(99, 40, 1)
PROMPT = [90, 91]
TEXT = list(range(10, 30))  # every token once


class Writing:
    """A text that is written token by token beside a session."""

    def __init__(self, session: Any) -> None:
        self.session, self.context = session, Context(1, PROMPT)

    def __call__(self, *tokens: int) -> Draft:
        self.context.extend(tokens)
        return answerless(self.session.draft(self.context, ROOM))


def writing(*texts: list[int], **options: Any) -> Writing:
    return Writing(Reference(**options).open(kit_for(references=texts)))


def test_it_begins_at_the_start_and_follows_the_text() -> None:
    write = writing(TEXT, longest=3)
    draft = write()
    assert (draft.tokens, draft.found, draft.probs) == ([10, 11, 12], FOUND, None)
    assert write(10, 11, 12).tokens == [13, 14, 15]
    assert write(*range(13, 29)).tokens == [29]
    assert write(29).found == "none"  # nothing is left of it


def test_a_longer_match_is_copied_further() -> None:
    write = writing(TEXT, stretch=2)
    assert write(99, 15).tokens == [16, 17]
    assert write(16).tokens == [17, 18, 19, 20]
    assert write(17).grade == 3


def test_a_token_that_was_replaced_is_stepped_over_once() -> None:
    write = writing(TEXT, guess=2)
    write()
    write(10, 11)
    assert write(99).tokens == [13, 14]  # in place of 12
    assert write(98).tokens == []  # it was more than one token
    assert write(12).tokens == [13, 14, 15, 16]  # and was an insertion in truth
    assert writing(TEXT, guess=0)(10, 11, 99).tokens == []
    # at the start nothing says that the answer is like the reference
    assert writing(TEXT)(99).tokens == []


def test_of_equal_matches_the_nearest_one_behind_is_taken() -> None:
    text = [1, 2, 50, 1, 2, 51, 1, 2, 52]
    write = writing(text, longest=1)
    assert write(1, 2).tokens == [50]
    assert write(50, 1, 2).tokens == [51]
    assert write(51, 77, 1, 2).tokens == [52]  # the first that was not passed
    assert write(52, 1, 2).tokens == [52]  # or else the last one
    assert writing([1, 2, 50, 3, 2, 51], longest=1)(77, 3, 2).tokens == [51]  # more of it agrees
    assert writing(text, longest=1, candidates=1)(77, 2).tokens == [50]


def test_copies_stay_in_their_reference() -> None:
    write = writing([1, 2, 3], [4, 5, 6], longest=9)
    assert write().tokens == [1, 2, 3]
    assert write(1, 2).tokens == [3]
    assert write(4).tokens == [5, 6]
    assert writing()().found == "none"


def test_what_the_prompt_ends_with_is_no_part_of_a_match() -> None:
    context = Context(1, [10, 11])
    session = Reference(guess=0).open(kit_for(references=[TEXT]))
    assert answerless(session.draft(context, ROOM)).tokens == TEXT  # the start, not what follows 11


def test_what_it_knows_depends_on_the_text_alone() -> None:
    """Asked after each token, or once at the end of edits of all kinds."""
    rng = random.Random(0)
    for _ in range(200):
        text = [rng.randrange(6) for _ in range(30)]
        written = [t for t in text if rng.random() > 0.1]
        written = [rng.randrange(7) if rng.random() < 0.2 else t for t in written]
        each, once = writing(text, [1, 2, 3]), writing(text, [1, 2, 3])
        for token in written:
            draft = each(token)
        assert once(*written) == draft


def test_a_file_is_a_reference_of_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "answer.txt"
    path.write_text(" It is.\n\n It")
    bound = Reference(file=str(path)).bind(run_of({}))
    session = bound.open(kit_for(references=[[3, 3]]))
    assert Writing(session)().tokens == [3, 3]
    assert Writing(session)(0, 1).tokens == [3, 2, 0]
    with pytest.raises(UserError, match=r"file=.*nowhere does not exist"):
        Reference(file=str(tmp_path / "nowhere")).bind(run_of({}))
    for wrong in ({"longest": 0}, {"shortest": 9, "match": 8}, {"guess": -1}, {"candidates": 0}):
        with pytest.raises(UserError, match="give"):
            Reference(**wrong)


def test_beside_another_drafter_a_sure_match_comes_first() -> None:
    text = [*range(10, 20), *range(40, 50)]
    kit = kit_for(references=[text])
    write = Writing(beside(PromptLookup(longest=9).open(kit), kit, 2))
    assert write().tokens == text
    write(77, 78, 79, 10)
    assert write(77).tokens == [
        78,
        79,
    ]  # a token of the reference is no match: the other one, its 2
    assert write(*range(10, 15)).tokens == [*range(15, 20), *range(40, 50)]
    assert answerless(write.session.draft(write.context, Room(99, 40, 1, (15, 16)))).found != FOUND


EDIT = "Change c to 5 in this list: a=3, b=4, c=1, d=2."


def test_the_library_takes_references(tmp_path: Path) -> None:
    """The same answer, in fewer passes; an answer that is the reference is copied from its start."""
    options: dict[str, Any] = {"split": "token", "accept": "greedy", "temperature": 0, "max_new_tokens": 40}  # fmt: skip
    for draft in ("none", "prompt_lookup"):
        with semspec.load(draft=draft, **options) as pair:
            alone = pair.solve(EDIT)
            told = "".join(s.text for s in pair.stream(EDIT, reference=alone.text))
            figures = pair.solve(EDIT, reference=[alone.text]).figures
            assert told == figures.text == alone.text
            assert figures.target_passes < alone.figures.target_passes / 4


def test_a_run_copies_from_references_only_where_it_is_asked_to() -> None:
    problem = BenchmarkProblem("p", EDIT, references=("a=3, b=4, c=5, d=2.",))
    from semspec.config import build, compose

    common = [
        "split=token",
        "accept=greedy",
        "temperature=0",
        "max_new_tokens=40",
        "adaptive=false",
    ]
    for draft, copies in (("suffix", False), ("reference", True), ("none", False)):
        with Solver(build(compose([f"draft={draft}", *common]))) as solver:
            (done,) = solver.solve([problem], "speculative")
            assert not next(iter(solver.solve([problem], "plain"))).outcome.rounds[0].drafted
            assert any(r.found == FOUND for r in done.outcome.rounds) == copies
            texts = [solver.text.encode(text) for text in problem.references]
            assert sum(reuse.predicted(done.outcome.rounds, texts)) == sum(map(len, texts))
            (done,) = solver.solve([replace(problem, references=())], "speculative")
            if (
                draft != "suffix"
            ):  # nothing can be drafted: the target writes in one piece, as if alone
                (only,) = done.outcome.rounds
                assert only.handed == done.outcome.tokens and not only.drafted
