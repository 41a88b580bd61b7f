"""Speculative Thinking: which model writes on, traced by hand."""

from __future__ import annotations

from typing import Any

import pytest

from semspec.config import RunConfig, check
from semspec.drafters.lm import LanguageModel
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.rules.triggers import Triggers
from semspec.types import Verdict
from tests.support.words import Words, finish

CALM, DOUBT, CHECK, YES = (
    " So x is 4.\n\n",
    " Wait, that is odd.\n\n",
    " Let me check that.\n\n",
    " Yes, I am sure.\n\n",
)


@pytest.mark.parametrize(
    ("opening", "mood"),
    [
        ("So x is 4.", None),
        ("Wait, x is 4.", "negative"),
        ("Hold\non", "negative"),
        ("ANOTHER way", "negative"),
        ("Yes, the final answer", "positive"),
        ("Yes, but wait", "negative"),  # a tie
        ("Yes. Yes! But wait", "positive"),
        ("Let me verify", "verify"),
        ("Yes, let me check", "verify"),  # a tie, and openings that verify are doubts
        ("Wait, think again", "verify"),
        ("yesterday the waiter checked", None),  # whole words
        ("", None),
    ],
)
def test_openings_are_classified_by_their_words(opening: str, mood: str | None) -> None:
    assert Triggers().mood(opening) == mood


class Trace:
    """A session, and an output that grows as the loop would make it grow."""

    def __init__(self, words: Words | None = None, **options: Any) -> None:
        self.words = words or Words()
        self.kit = self.words.kit()
        self.session = Triggers(**options).open(self.kit)
        self.context = self.words.context()

    def judge(self, *units: str) -> Verdict:
        verdict: Verdict = finish(self.session.judge(self.context, self.words.draft(*units)))
        draft = self.words.draft(*units)
        self.context.extend([*draft.tokens[: verdict.keep], *verdict.write])
        return verdict

    def target_writes(self, text: str) -> None:
        self.context.extend(self.words.encode(text))


def limit(verdict: Verdict) -> int | None:
    assert verdict.handover is not None and verdict.handover.units is None
    return verdict.handover.limit


def test_the_target_takes_over_where_a_paragraph_opens_with_a_trigger() -> None:
    trace = Trace()
    verdict = trace.judge(CALM, CALM, DOUBT, CALM)
    assert verdict.keep == len(trace.words.encode(CALM + CALM))
    assert limit(verdict) == 20 and not verdict.write
    assert "negative" in verdict.note
    trace.target_writes(" Hmm, so")  # stopped in the middle of a paragraph
    verdict = trace.judge(" wait for it.\n\n")  # which goes on: no opening, whatever it says
    assert verdict.handover is None and verdict.keep == 4
    assert limit(trace.judge(CHECK)) == 125
    trace.target_writes(" All is well.\n\n")
    assert limit(trace.judge(YES)) == 20
    assert trace.session.negatives == 2


def test_only_the_opening_counts() -> None:
    trace = Trace(opening=3)
    assert trace.judge(" So x is 4. Wait, no.\n\n").handover is None
    assert limit(trace.judge(" So I wait\n\n")) == 20


def test_a_recap_follows_many_doubts_and_grows() -> None:
    """Patience 2, 3, 4, 4; recaps of 10, 14, 16, 16 tokens."""
    trace = Trace(
        patience=2,
        patience_growth=1,
        patience_most=4,
        recap_tokens=10,
        recap_growth=4,
        recap_most=16,
        recap_text="Once more:",
    )
    for patience, length in ((2, 10), (3, 14), (4, 16), (4, 16)):
        for _ in range(patience):
            assert limit(trace.judge(DOUBT)) == 20
            trace.target_writes(CALM)
        verdict = trace.judge(CALM)  # whatever it opens with
        assert verdict.keep == 0 and limit(verdict) == length
        assert trace.words.decode(verdict.write) == "Once more:"
        trace.target_writes(CALM)
        assert trace.judge(CALM).handover is None


def test_positive_openings_do_not_count_as_doubts() -> None:
    trace = Trace(patience=1)
    for _ in range(3):
        assert limit(trace.judge(YES)) == 20
        trace.target_writes(CALM)


def test_a_loop_is_caught_without_a_query() -> None:
    words = Words()
    session = Triggers().open(words.kit(max_repeats=2))
    context = words.context(CALM + CALM)
    verdict = finish(session.judge(context, words.draft(" Now y.\n\n", CALM)))
    assert verdict.keep == len(words.encode(" Now y.\n\n")) and limit(verdict) == 20
    assert "repeats" in verdict.note


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokens": 0}, "tokens=0"),
        ({"patience_growth": -1}, "patience_growth=-1"),
        ({"recap_most": 100}, "recap_most=100 .* 125"),
        ({"negative": ("wait", " ")}, "empty word"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Triggers(**options)


def test_salvage_is_refused() -> None:
    config = RunConfig(
        draft=LanguageModel(),
        accept=Triggers(),
        nested=LanguageModel(),
        nested_accept=Triggers(),
        engine=Hf(),
        salvage=True,
    )
    with pytest.raises(UserError, match="nothing can be salvaged"):
        check(config)
