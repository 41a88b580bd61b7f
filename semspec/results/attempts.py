"""Several attempts at each problem, and how many independent answers they are worth.

Attempts at one problem are correlated. Figures are therefore means over problems of each problem's mean over its
attempts, and intervals are over problems. A share's interval uses the number of independent answers that the
attempts are worth (``worth``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from semspec.protocols import BenchmarkProblem

V = TypeVar("V")
Groups = Sequence[Sequence[float]]
"""Values of answers, by problem."""


def attempted(problems: Sequence[BenchmarkProblem], attempts: int) -> list[BenchmarkProblem]:
    """Return the problems ``attempts`` times: first unchanged, then with new ids for the further attempts.

    Random numbers depend on the id. Remembered answers belong to a tenant, and each attempt number has its own: no
    attempt copies from another attempt at the same problem.
    """
    again = (
        replace(p, id=f"{p.id}#{number}", attempt_of=p.id, tenant=f"{p.tenant}#{number}")
        for number in range(2, attempts + 1)
        for p in problems
    )
    return [*problems, *again]


def problem_of(line: Mapping[str, Any]) -> str:
    """Return the id of the problem that a line of problems.jsonl is an attempt at."""
    return str(line.get("attempt_of", line["id"]))


def answers_of(figures: Mapping[str, Any]) -> int:
    """Return the number of answers behind figures; it equals the number of problems unless they had several attempts."""
    return int(figures.get("answers", figures["problems"]))


def counted(figures: Mapping[str, Any]) -> str:
    """Say how many problems and attempts figures cover: ``30 problems x 4 attempts``."""
    problems, answers = figures["problems"], answers_of(figures)
    said = f"{problems:,} problem{'' if problems == 1 else 's'}"
    if answers == problems:
        return said
    each, more = divmod(answers, problems)
    return f"{said}, {answers:,} answers" if more else f"{said} x {each:,} attempts"


def by_problem(problems: Iterable[str], values: Iterable[V]) -> list[list[V]]:
    """Group values by problem, in order of the problems' first appearance."""
    groups: dict[str, list[V]] = {}
    for problem, value in zip(problems, values, strict=True):
        groups.setdefault(problem, []).append(value)
    return list(groups.values())


def summed(problems: Iterable[str], pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:  # fmt: skip
    """Sum the pairs of each problem."""
    groups = by_problem(problems, pairs)
    return [g[0] if len(g) == 1 else (sum(a for a, _ in g), sum(b for _, b in g)) for g in groups]


def mean_of(groups: Groups) -> float:
    """Return the mean over problems of each problem's mean over its attempts."""
    if all(len(group) == 1 for group in groups):
        return sum(group[0] for group in groups) / len(groups)
    return math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)


def worth(groups: Groups, z: float) -> float:
    """Return how many independent answers the attempts are worth: at least one per problem, at most all of them.

    That is the number of problems times (variance of an answer / variance of a problem's mean), Kish's design effect,
    reduced because the latter is estimated from few problems, at the level of ``z`` (Korn and Graubard 1998). Attempts
    that all agree are worth one answer per problem; so is one attempt per problem, exactly.
    """
    problems, answers = len(groups), sum(map(len, groups))
    if problems < 2 or answers == problems:
        return problems
    middle = mean_of(groups)
    whole = math.fsum(math.fsum((x - middle) ** 2 for x in g) / len(g) for g in groups)
    between = math.fsum((math.fsum(g) / len(g) - middle) ** 2 for g in groups)
    if whole <= 1e-12 * problems:  # all answers are equal, which says nothing about correlation
        return problems
    found = problems * whole / between if between > 1e-12 * whole else math.inf
    found *= (_widening(z, answers - 1) / _widening(z, problems - 1)) ** 2
    return min(max(found, problems), answers)


def counts_of(groups: Groups, z: float) -> tuple[float, float]:
    """Return (right answers, answers), scaled to what the attempts are worth; one attempt per problem is not scaled."""
    trials = worth(groups, z)
    if sum(map(len, groups)) == len(groups):
        return sum(map(sum, groups)), trials
    return mean_of(groups) * trials, trials


def _widening(z: float, freedom: int) -> float:
    """Return Student's quantile divided by the normal one, ``z`` (Fisher and Cornish 1960)."""
    terms = (
        1,
        (z**2 + 1) / 4,
        (5 * z**4 + 16 * z**2 + 3) / 96,
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
