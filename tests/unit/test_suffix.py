"""The suffix automaton equals a search from the end, on random and on adversarial texts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from semspec.drafters._automaton import SuffixAutomaton
from semspec.drafters._ngrams import Match
from semspec.drafters.suffix import Suffix
from semspec.errors import UserError
from semspec.types import Context, Room
from tests.support.drafting import answerless, kit_for


def texts(cases: int, rng: random.Random) -> Iterator[str]:
    """Random texts over small alphabets, and those that strain an automaton most."""
    fibonacci, before = "ab", "a"
    while len(fibonacci) < 400:
        fibonacci, before = fibonacci + before, fibonacci
    thue_morse = "".join("ab"[i.bit_count() % 2] for i in range(400))
    yield from ("a" * 300, "ab" * 150, "abb" * 100, fibonacci[:400], thue_morse)
    yield "".join("a" * i + "b" for i in range(28))
    yield "abcdefghij" * 4 + "b" + "abcdefghij" * 4
    while cases > 0:
        length, letters = rng.randrange(1, 60), "abcdefgh"[: rng.randrange(1, 9)]
        parts = ["".join(rng.choices(letters, k=length))]
        if rng.random() < 0.5:  # a copy with a fault in it, as texts that edit themselves have
            at = rng.randrange(length)
            parts.append(parts[0][:at] + rng.choice(letters) + parts[0][at + 1 :])
        yield "".join(parts)
        cases -= sum(map(len, parts))


def search(text: str, longest: int) -> Match | None:
    for length in range(min(longest, len(text) - 1), 0, -1):
        at = text.rfind(text[len(text) - length :], 0, len(text) - 1)
        if at >= 0:
            return Match(at + length, length)
    return None


@pytest.mark.parametrize("longest", [1, 3, 8, 1000])
def test_matches_equal_a_search_from_the_end(longest: int) -> None:
    """30,000 cases each: a case is one more token of a text."""
    for text in texts(30_000, random.Random(longest)):
        automaton = SuffixAutomaton(longest)
        for end in range(1, len(text) + 1):
            automaton.extend(map(ord, text[end - 1]))
            assert automaton.match == search(text[:end], longest), text[:end]


def test_the_automaton_stays_as_small_as_theory_says() -> None:
    """At most 2n - 1 states and 3n - 4 transitions (Blumer et al. 1985)."""
    for text in texts(2_000, random.Random(0)):
        automaton = SuffixAutomaton(16)
        automaton.extend(map(ord, text))
        if len(text) > 2:
            assert len(automaton._link) <= 2 * len(text) - 1
            assert sum(map(len, automaton._next)) <= 3 * len(text) - 4


def test_a_longer_match_copies_more() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 50, 1, 2]
    session = Suffix(stretch=2.0, longest=6).open(kit_for())
    context = Context(1, text)
    assert answerless(session.draft(context, Room(99, 99, 1))).tokens == [3, 4, 5, 6]
    context.extend([3, 4])
    assert answerless(session.draft(context, Room(99, 99, 1))).tokens == [5, 6, 7, 8, 9, 10]
    context.extend([60])
    missed = answerless(session.draft(context, Room(99, 99, 1)))
    assert (missed.tokens, missed.found) == ([], "none")
    wary = Suffix(shortest=3).open(kit_for())
    assert not answerless(wary.draft(Context(1, text), Room(99, 99, 1))).tokens


@pytest.mark.parametrize("options", [{"longest": 0}, {"shortest": 65}, {"stretch": 0.0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        Suffix(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("period", [1, 2, 4])
def test_periodic_text_is_copied_round_and_round(period: int) -> None:
    """Longer drafts after longer matches, also beyond the text's end: forty tokens a round."""
    text = [*islice(cycle(range(period)), 400)]
    session, at, lengths = Suffix().open(kit_for()), Context(1, text[: 2 * period]), list[int]()
    while len(at) < 300:
        draft = answerless(session.draft(at, Room(99, 99, 1)))
        assert draft.tokens == text[len(at) : len(at) + len(draft.tokens)]
        lengths.append(len(draft.tokens))
        at.extend(text[len(at) : len(at) + len(draft.tokens) + 1])
    assert max(lengths) == 40 and len(lengths) < 13
