"""ARC-Decode's pruned nodes, and the side of the bound that kept tokens: counts and shares."""

from __future__ import annotations

import pytest

from semspec.report.arms import COLUMNS
from semspec.results import bound
from semspec.types import Round


def test_shares_equal_those_counted_by_hand() -> None:
    rounds = [
        Round(counts={"grown": 30, "pruned": 6, "loose_embedding": 3, "kept_embedding": 1}),
        Round(counts={"grown": 10, "pruned": 4, "loose_both": 1, "loose_rare": 2}),
        Round(),
    ]
    counts = bound.count(rounds)
    assert bound.pruned(counts) == 10 / 40
    assert bound.figures(counts) == {
        "loose": {"nodes": 4, "embedding": 0.75, "logit": 0.0, "both": 0.25, "rare": 0.5},
        "kept": {"nodes": 1, "embedding": 1.0, "logit": 0.0, "both": 0.0, "rare": 0.0},
    }


@pytest.mark.parametrize("counts", [{}, {"grown": 0}])
def test_without_pruning_or_a_bound_there_is_no_figure(counts: dict[str, int]) -> None:
    assert bound.pruned(counts) is None
    assert bound.figures(counts) is None


def test_a_table_of_arms_shows_them_and_rows_of_older_files_are_blank() -> None:
    figures = bound.figures(
        {"loose_embedding": 8, "kept_embedding": 1, "kept_both": 3, "kept_rare": 2}
    )
    row = {"pruned": 0.2421, "bound": figures}
    shown = [COLUMNS[name][1] for name in ("pruned", "sides")]
    assert [write(row) for write in shown] == ["24.2 %", "0.25 / 0.00 / 0.75 of 4, 0.50 rare"]
    assert [write({}) for write in shown] == ["", ""]
