"""Refactorings do not change texts or round counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from semspec import registry
from tests.support import golden

AT_A_TIME = 6  # cases in one process
QUICK = {  # of each part of the loop one case; the deep run has all
    "plain", "drafter adapld", "drafter eagle3", "rule lossless, chain", "rule typical, tree", "rule semantic, steps",
    "rule semantic_plus, steps", "rule logprob, steps", "rule arc, pruned", "sentences", "salvage", "nested retrieval",
}  # fmt: skip


def groups() -> Iterator[Any]:
    quick = [name for name in golden.CASES if name in QUICK]
    deep = [name for name in golden.CASES if name not in QUICK]
    for names, marks in ((quick, ()), (deep, (pytest.mark.deep,))):
        for start in range(0, len(names), AT_A_TIME):
            group = names[start : start + AT_A_TIME]
            yield pytest.param(group, marks=marks, id=f"{group[0]} to {group[-1]}")


@pytest.mark.parametrize("names", [*groups()])
def test_runs_equal_their_golden_records(names: Sequence[str]) -> None:
    frozen = golden.frozen()
    fresh = golden.fresh({name: golden.CASES[name] for name in names})
    assert not {
        name: (frozen[name], found) for name, found in fresh.items() if frozen[name] != found
    }
    assert list(fresh) == list(names)


def test_every_case_has_a_golden_record() -> None:
    assert set(golden.frozen()) == set(golden.CASES) and set(golden.CASES) > QUICK


def test_every_drafter_and_rule_has_a_golden_run() -> None:
    said = [word for options in golden.CASES.values() for word in options]
    for name in set(registry.plugins("accept")):
        assert f"accept={name}" in said
    for name in set(registry.plugins("drafter")) - {"lm"}:  # the default
        assert f"draft={name}" in said
