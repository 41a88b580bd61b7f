"""The origins of kept tokens, counted by the loop and reported as shares."""

from __future__ import annotations

import random

import pytest

from semspec.drafters.adapld import AdaPld
from semspec.results import reuse
from semspec.types import Round
from tests.unit.test_context_drafters import solved


def test_shares_of_sources_equal_those_counted_by_hand() -> None:
    def round_of(found: str, origin: str, kept: int) -> Round:
        return Round(kept=[0] * kept, found=found, origin=origin)

    rounds = [
        round_of("lexical", "main", 7),
        round_of("lexical", "main", 1),
        round_of("lexical", "branch", 1),
        round_of("semantic", "successor", 2),
        round_of("lexical", "mismatch", 0),
        round_of("none", "", 0),
        Round(kept=[1, 2]),  # of a drafter that tells nothing
    ]
    figures = reuse.figures(reuse.count(rounds))
    assert figures is not None
    assert figures["found"] == pytest.approx({"lexical": 4 / 6, "semantic": 1 / 6, "none": 1 / 6})
    assert figures["recovered"] == 1 / 2
    assert figures["origin"] == {"main": 0.4, "branch": 0.2, "successor": 0.2, "mismatch": 0.2}
    assert (figures["rate"], figures["branched"], figures["length"]) == (4 / 5, 2 / 4, 11 / 4)
    assert figures["lengths"] == {"1": 0.5, "2": 0.25, "3": 0, "4": 0, "5": 0.25}
    assert reuse.figures(reuse.count([Round(kept=[1])])) is None


def test_the_loop_tells_where_the_last_kept_token_came_from() -> None:
    _, _, _, outcome = solved(AdaPld(branch=1), 1)
    for r in outcome.rounds:
        assert r.found in reuse.FOUND
        assert bool(r.origin) == bool(r.drafted)
        assert (r.origin == "mismatch") == bool(r.drafted and not r.kept)
    assert {r.origin for r in outcome.rounds} >= {"main", "branch", "mismatch"}


def copied(drafted: str, kept: int, written: str = "") -> Round:
    """A round that copied letters as tokens, and what the target has written behind them."""
    tokens = [ord(letter) for letter in drafted]
    return Round(drafted=tokens, kept=tokens[:kept], written=spelt(written), found=reuse.REFERENCE)


def spelt(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.mark.parametrize(
    ("rounds", "accepted"),
    [
        ([copied("abcdefgh", 8)], 8),
        ([copied("abcd", 4, "e"), copied("fgh", 3)], 8),  # the token behind a draft is the rule's
        ([Round(handed=spelt("abcde")), copied("fgh", 3)], 8),  # the text had begun like it
        ([copied("abcdefgh", 3, "x")], 3),
        ([copied("abcdefgh", 3, "x"), copied("efgh", 4)], 7),  # one letter is another one
        ([copied("abcdefgh", 0, "x")], 0),
        ([Round(handed=spelt("abcdefgh"))], 0),  # written by chance: nothing was copied
        ([copied("abc", 3), Round(handed=spelt("de")), Round(handed=spelt("x"))], 5),
        ([copied("abc", 3, "x"), copied("abc", 3)], 3),  # each token counts once
        ([copied("fgh", 3, "x"), copied("abc", 3)], 6),
        ([Round(drafted=spelt("abc"), kept=spelt("abc"))], 0),  # another drafter's
        ([], 0),
    ],
)
def test_the_tokens_of_a_prediction_are_taken_over_or_not(
    rounds: list[Round], accepted: int
) -> None:
    assert reuse.predicted(rounds, [spelt("abcdefgh")]) == (accepted, 8 - accepted)


def test_predictions_of_several_parts_count_together_and_do_not_run_into_each_other() -> None:
    parts = [spelt("abcd"), spelt("efgh")]
    assert reuse.predicted([copied("cd", 2), Round(handed=spelt("e"))], parts) == (2, 6)
    assert reuse.predicted([copied("cd", 2), copied("ef", 2)], parts) == (4, 4)


def test_any_text_leaves_as_many_tokens_of_a_prediction_as_it_has_not_taken_over() -> None:
    """Texts of two letters, where every run stands in many places."""
    rng = random.Random(0)
    for _ in range(300):
        known = "".join(rng.choice("ab") for _ in range(rng.randint(1, 12)))
        rounds = []
        for _ in range(rng.randint(0, 6)):
            start = rng.randrange(len(known))
            copy = known[start : start + rng.randint(1, 5)]
            rounds.append(copied(copy, rng.randint(0, len(copy)), rng.choice(["", "a", "b"])))
        accepted, rejected = reuse.predicted(rounds, [spelt(known)])
        assert accepted + rejected == len(known)
        assert accepted <= sum(len(r.tokens) for r in rounds)
        assert (accepted > 0) == any(r.kept for r in rounds)
