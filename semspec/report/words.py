"""The figures in sentences: what may be said, and what the data do not tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.metrics import Interval
from semspec.terminal import number

ALPHA = 0.05


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    return f"{100 * value:+.1f}"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def speed(result: Mapping[str, Any]) -> str:
    """Whether the run was faster than the target alone."""
    faster, spread = result["speedup"], result["speedup_interval"]
    if result["plain"] is None or faster is None:
        return "The target alone was not run, so no speed-up can be told."
    if spread is None:
        return f"{number(faster)} times the speed of the target alone, on one problem: no interval can be told."
    told = f"{number(faster)} times the speed of the target alone (95 %: {_range(spread)})"
    if spread[0] > 1:
        return f"Faster: {told}."
    if spread[1] < 1:
        return f"Slower: {told}."
    return f"No difference in speed can be told: {told}."


def quality(result: Mapping[str, Any]) -> str:
    """Whether pass@1 differs from the target's alone."""
    p, plain = result["pass_at_1_p"], result["plain"]
    if result["pass_at_1"] is None:
        return "Nothing was graded."
    if plain is None or p is None:
        return "The target alone was not graded beside it, so no change of pass@1 can be told."
    lost, won = result["only_plain_correct"], result["only_speculative_correct"]
    sides = f"{lost} lost and {won} won of {plain['graded']} problems, {p_value(p)}"
    if p < ALPHA:
        return f"pass@1 {'fell' if lost > won else 'rose'}: {sides}."
    return f"The data show no change of pass@1: {sides}."


def _range(interval: Interval, digits: int = 2) -> str:
    return f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) correction: of many comparisons some look unlike by chance alone."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, i) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * p))
        adjusted[i] = worst
    return adjusted
