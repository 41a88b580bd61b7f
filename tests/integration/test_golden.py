"""Texts and round counts stay what they were, through every change of structure."""

from __future__ import annotations

from semspec import registry
from tests.support import golden


def test_runs_equal_their_golden_records() -> None:
    frozen, fresh = golden.frozen(), golden.fresh()
    assert set(frozen) == set(golden.CASES)
    changed = {name: (frozen[name], fresh[name]) for name in frozen if frozen[name] != fresh[name]}
    assert not changed


def test_every_drafter_and_rule_has_a_golden_run() -> None:
    said = [word for options in golden.CASES.values() for word in options]
    for name in set(registry.plugins("accept")):
        assert f"accept={name}" in said
    for name in set(registry.plugins("drafter")) - {"lm"}:  # the default
        assert f"draft={name}" in said
