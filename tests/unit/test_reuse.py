"""Where kept tokens came from, counted by the loop and told as shares."""

from __future__ import annotations

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
