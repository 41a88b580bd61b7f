"""Prompt lookup finds the longest match, among equals the latest, and copies whole units."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semspec.decoding.trim import shared
from semspec.drafters._ngrams import Match, NGrams
from semspec.drafters.prompt_lookup import PromptLookup
from semspec.errors import UserError
from semspec.types import Context, Draft, Room
from tests.support.drafting import answerless, kit_for


def drafted(tokens: list[int], room: Room, split: str = "token", **options: int) -> Draft:
    session = PromptLookup(**options).open(kit_for(split))
    return answerless(session.draft(Context(1, tokens), room))


def brute_force(tokens: list[int], longest: int, shortest: int) -> Match | None:
    for length in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) > length and tokens[start - length : start] == tokens[-length:]:
                return Match(start, length)
    return None


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.integers(1, 60), max_size=4),
)
def test_matches_equal_a_search_from_the_end(
    tokens: list[int], longest: int, shortest: int, stops: list[int]
) -> None:
    """Also where the text was read in pieces."""
    shortest = min(shortest, longest)
    ngrams = NGrams(longest, shortest)
    for stop in sorted({min(stop, len(tokens)) for stop in [*stops, len(tokens)]}):
        ngrams.learn(tokens[:stop])
        assert ngrams.find(tokens[max(0, stop - longest) : stop]) == brute_force(
            tokens[:stop], longest, shortest
        )


def test_a_longer_match_beats_a_newer_one() -> None:
    text = [7, 8, 9, 1, 0, 9, 2, 7, 8, 9]
    assert drafted(text, Room(9, 3, 1)).tokens == [1, 0, 9]
    assert drafted(text, Room(9, 3, 1), ngram=1).tokens == [
        2,
        7,
        8,
    ]  # the newest 9 is not the first
    assert drafted(text, Room(9, 9, 1), longest=2).tokens == [1, 0]
    nothing = drafted([7, 8, 9], Room(9, 9, 1))
    assert (nothing.tokens, nothing.ends, nothing.found) == ([], [], "none")


def test_a_step_is_copied_to_its_end() -> None:
    """Token 2 ends a paragraph in the toy world; ``longest`` does not tear it apart."""
    text = [3, 0, 1, 1, 1, 2, 0, 1, 2, 1, 3]
    one = drafted(text, Room(99, 1, 9), "paragraph", longest=2)
    assert (one.tokens, one.ends) == ([0, 1, 1, 1, 2], [5])
    two = drafted(text, Room(99, 2, 9), "paragraph")
    assert (two.tokens, two.ends) == ([0, 1, 1, 1, 2, 0, 1, 2], [5, 8])
    torn = drafted(text, Room(4, 1, 9), "paragraph")
    assert (torn.tokens, torn.ends) == ([0, 1, 1, 1], [4])


def test_nothing_is_copied_after_an_end_of_text() -> None:
    session = PromptLookup().open(kit_for("token", stop_ids=frozenset({5})))
    draft = answerless(session.draft(Context(1, [1, 2, 5, 3, 1, 2]), Room(9, 9, 1)))
    assert draft.tokens == [5]


@pytest.mark.parametrize("options", [{"ngram": 0}, {"shortest": 4}, {"longest": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        PromptLookup(**options)


@pytest.mark.parametrize("period", [1, 2, 4])
def test_periodic_text_is_copied_round_and_round(period: int) -> None:
    """The copy goes on with itself where the text ends, as long as other drafts."""
    text = [9, *range(period)] * 2 + [*range(period)] * 3
    draft = drafted(text, Room(99, 10, 1))
    assert draft.tokens == [*islice(cycle(range(period)), 10)]
    assert draft.ends == list(range(1, 11))
    assert drafted(text, Room(99, 99, 1), longest=7).tokens == draft.tokens[:7]
    assert drafted(text, Room(3, 99, 1)).tokens == draft.tokens[:3]


def test_text_that_was_there_once_before_is_no_period() -> None:
    assert drafted([1, 2, 3, 4, 1, 2, 3], Room(99, 99, 1)).tokens == [4, 1, 2, 3]
    assert drafted([5, 1, 2, 3, 4, 5], Room(99, 99, 1)).tokens == [1, 2, 3, 4, 5]


def test_periodic_steps_are_copied_to_an_end() -> None:
    """Token 2 ends a paragraph: the period has an end, so that the copy comes to it."""
    text = [3, 0, 1, 2, 0, 1, 2]
    draft = drafted(text, Room(99, 3, 9), "paragraph", longest=4)
    assert draft.tokens[:6] == [0, 1, 2, 0, 1, 2] and len(draft.tokens) <= 7
    endless = drafted([3, 0, 1, 0, 1, 0, 1], Room(99, 3, 90), "paragraph", longest=4)
    assert endless.tokens == [0, 1, 0, 1, 0, 1], "longest, and the period once more"


@pytest.mark.parametrize(
    ("period", "tau"),
    [(1, 11), (2, 11), (4, 11)],
)
def test_periodic_text_gains_whole_drafts(period: int, tau: int) -> None:
    """Tokens a round, once the text has gone round twice: ten drafted, one written."""
    text = [*islice(cycle(range(period)), 400)]
    session, at, rounds = PromptLookup().open(kit_for("token")), Context(1, text[: 2 * period]), 0
    while len(at) < 300:
        draft = answerless(session.draft(at, Room(99, 99, 1)))
        kept = shared(draft.tokens, text[len(at) :])
        at.extend(text[len(at) : len(at) + kept + 1])
        rounds += 1
    assert (len(at) - 2 * period) / rounds >= 0.95 * tau
