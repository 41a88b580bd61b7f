"""Several attempts at each problem: what is solved then, and how many independent answers they are worth.

Attempts at one problem resemble each other: what one of them says of the next problem the others have mostly
said already. Figures are therefore means over problems of the means over their attempts, and intervals are
over problems. A share's interval is that of as many independent answers as the attempts are worth (``worth``).
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
    """Return all problems so many times: as they are, and then, each under a name of its own, again.

    Random numbers go by the name. What is remembered of earlier answers goes by the number of the attempt: no
    attempt copies from another one at the same problem.
    """
    again = (
        replace(p, id=f"{p.id}#{number}", attempt_of=p.id, tenant=f"{p.tenant}#{number}")
        for number in range(2, attempts + 1)
        for p in problems
    )
    return [*problems, *again]


def problem_of(line: Mapping[str, Any]) -> str:
    """Return the problem that a line of problems.jsonl is an attempt at."""
    return str(line.get("attempt_of", line["id"]))


def answers_of(figures: Mapping[str, Any]) -> int:
    """Return how many answers figures are of: as many as problems, unless these had several attempts."""
    return int(figures.get("answers", figures["problems"]))


def counted(figures: Mapping[str, Any]) -> str:
    """Say how many problems figures are of, and how many attempts: ``30 problems x 4 attempts``."""
    problems, answers = figures["problems"], answers_of(figures)
    said = f"{problems:,} problem{'' if problems == 1 else 's'}"
    if answers == problems:
        return said
    each, more = divmod(answers, problems)
    return f"{said}, {answers:,} answers" if more else f"{said} x {each:,} attempts"


def by_problem(problems: Iterable[str], values: Iterable[V]) -> list[list[V]]:
    """Group values by their problems, in the order in which these first come."""
    groups: dict[str, list[V]] = {}
    for problem, value in zip(problems, values, strict=True):
        groups.setdefault(problem, []).append(value)
    return list(groups.values())


def summed(problems: Iterable[str], pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:  # fmt: skip
    """Add up pairs by problem."""
    groups = by_problem(problems, pairs)
    return [g[0] if len(g) == 1 else (sum(a for a, _ in g), sum(b for _, b in g)) for g in groups]


def mean_of(groups: Groups) -> float:
    """Return the mean over problems of the means over their attempts."""
    if all(len(group) == 1 for group in groups):
        return sum(group[0] for group in groups) / len(groups)
    return math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)


def worth(groups: Groups, z: float) -> float:
    """Return how many independent answers these are worth: at least one a problem, at most all.

    The variance of an answer over that of a problem's mean, times the problems (Kish's design effect), less what
    estimating the latter from few problems costs at the level of ``z`` (Korn and Graubard 1998). Attempts that
    all agree are worth one. One answer a problem is worth one, exactly.
    """
    problems, answers = len(groups), sum(map(len, groups))
    if problems < 2 or answers == problems:
        return problems
    middle = mean_of(groups)
    whole = math.fsum(math.fsum((x - middle) ** 2 for x in g) / len(g) for g in groups)
    between = math.fsum((math.fsum(g) / len(g) - middle) ** 2 for g in groups)
    if whole <= 1e-12 * problems:  # all are alike: how alike attempts are cannot be told
        return problems
    found = problems * whole / between if between > 1e-12 * whole else math.inf
    found *= (_widening(z, answers - 1) / _widening(z, problems - 1)) ** 2
    return min(max(found, problems), answers)


def counts_of(groups: Groups, z: float) -> tuple[float, float]:
    """Return how many of how many answers are right: those that these are worth. One a problem is counted as it is."""
    trials = worth(groups, z)
    if sum(map(len, groups)) == len(groups):
        return sum(map(sum, groups)), trials
    return mean_of(groups) * trials, trials


def _widening(z: float, freedom: int) -> float:
    """Return Student's quantile over the normal one, ``z`` (Fisher and Cornish 1960)."""
    terms = (
        1,
        (z**2 + 1) / 4,
        (5 * z**4 + 16 * z**2 + 3) / 96,
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
