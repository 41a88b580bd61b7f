"""Describe a run's figures in sentences that claim no more than the data show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semspec.report.terminal import number, significant
from semspec.results.significance import FEWEST


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def speed(result: Mapping[str, Any]) -> str:
    """Return a sentence on the speed relative to the target alone."""
    faster, spread = result["speedup"], result["speedup_interval"]
    if result["plain"] is None or faster is None:
        return "The target alone was not run, so there is no speed-up."
    few = result["plain"]["problems"]
    factor = f"{number(faster)} times the speed of the target alone"
    if spread is None or few < FEWEST:
        problems = "one problem" if few == 1 else f"{few} problems"
        return f"{factor} on {problems}, which are too few to tell more."
    low, high = spread
    verdict = "Faster" if low > 1 else "Slower" if high < 1 else "No clear difference in speed"
    return f"{verdict}: {factor} (95 %: {low:.2f} to {high:.2f})."


def quality(result: Mapping[str, Any]) -> str:
    """Return a sentence on pass@1 compared with the target alone."""
    p, plain = result["pass_at_1_p"], result["plain"]
    if result["pass_at_1"] is None:
        return "Nothing was graded."
    if plain is None or p is None:
        return "The target alone was not graded in this run, so its pass@1 is unknown."
    lost, won = result["only_plain_correct"], result["only_speculative_correct"]
    sides = f"{lost} lost and {won} won of {plain['graded']} {'answers' if 'answers' in plain else 'problems'}, {p_value(p)}"
    if significant(result):
        return f"pass@1 {'fell' if lost > won else 'rose'}: {sides}."
    return f"No clear change of pass@1: {sides}."
