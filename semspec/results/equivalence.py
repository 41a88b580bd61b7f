"""Test if two ways to decode are equivalent within a margin: two one-sided tests (TOST), at 5 % each.

Finding no difference says little, since there may be too few problems. Equivalence is shown if the 90 % interval of the
difference lies within the margin (Schuirmann 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semspec.deferred import special
from semspec.results.attempts import V, by_problem, mean_of, problem_of
from semspec.results.metrics import Interval, mean, share_interval
from semspec.results.significance import ALPHA, apart, paired_by_problem

Z90 = 1.6448536269514722  # the normal distribution's 95 % quantile: one side of a 90 % interval
FEWEST = 6  # least number of values for the interval of a mean
Verdict = Literal["equivalent", "beyond", "unknown"]


@dataclass(frozen=True)
class Equivalence:
    """The result for one figure; ``difference`` is B's minus A's, for lengths as a fraction of A's."""

    about: str  # pass@1, cut off, thinking, length, agreement
    n: int
    a: float | None
    b: float | None
    difference: float
    interval: Interval  # 90 %
    margin: float
    p: float  # the tests' p-value: how likely this is if the true difference is outside the margin
    verdict: Verdict


def _judged(interval: Interval, margin: float) -> Verdict:
    if -margin <= interval[0] and interval[1] <= margin:
        return "equivalent"
    return "beyond" if interval[0] > margin or interval[1] < -margin else "unknown"


def _p_of(interval_of: Callable[[float], Interval], margin: float) -> float:
    """Return the one-sided level at which the interval just fits into the margin; 0.5 if none does."""
    low, high = 0.0, 12.0
    if not all(-margin <= end <= margin for end in interval_of(low)):
        return 0.5
    for _ in range(60):
        z = (low + high) / 2
        if all(-margin <= end <= margin for end in interval_of(z)):
            low = z
        else:
            high = z
    return float(special.ndtr(-low))


def shares(
    about: str,
    a: Sequence[Sequence[bool]],
    b: Sequence[Sequence[bool]],
    margin: float,
    paired: bool,
) -> Equivalence | None:
    """Compare two shares over the same (``paired``) or different problems; None without problems.

    ``a`` and ``b`` hold one list of attempts for each problem.
    """
    if not a or not b:
        return None
    groups = [list(zip(x, y, strict=True)) for x, y in zip(a, b, strict=True)] if paired else []

    def interval_of(z: float) -> Interval:
        return paired_by_problem(groups, z)[1] if paired else apart(a, b, z)

    own, other = mean_of(a), mean_of(b)
    interval = interval_of(Z90)
    p = _p_of(interval_of, margin)
    n = min(len(a), len(b))
    return Equivalence(
        about, n, own, other, other - own, interval, margin, p, _judged(interval, margin)
    )


def lengths(
    about: str, a: Sequence[float], b: Sequence[float], margin: float, paired: bool
) -> Equivalence | None:
    """Compare two means over problems by their ratio, with Fieller's interval; None with too few values."""
    if min(len(a), len(b)) < FEWEST or not sum(a) > 0:
        return None
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    var_a, var_b = (_variance(values) / len(values) for values in (a, b))
    both = 0.0
    if paired:
        each = [(x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)]
        both = math.fsum(each) / (len(a) - 1) / len(a)
    freedom = len(a) - 1 if paired else len(a) + len(b) - 2

    def t_at(ratio: float) -> float:
        spread = var_b - 2 * ratio * both + ratio * ratio * var_a
        off = mean_b - ratio * mean_a
        if not spread > 1e-12 * mean_a * mean_a:
            return math.copysign(math.inf, off) if abs(off) > 1e-9 * mean_a else 0.0
        return off / math.sqrt(spread)

    # the ratio is above 1 - margin, and below 1 + margin
    p = max(
        float(special.stdtr(freedom, -t_at(1 - margin))),
        float(special.stdtr(freedom, t_at(1 + margin))),
    )
    interval = _fieller(
        mean_a, mean_b, var_a, var_b, both, float(special.stdtrit(freedom, 1 - ALPHA))
    )
    if interval is None:
        return None
    n = min(len(a), len(b))
    return Equivalence(
        about,
        n,
        mean_a,
        mean_b,
        mean_b / mean_a - 1,
        interval,
        margin,
        p,
        _judged(interval, margin),
    )


def _variance(values: Sequence[float]) -> float:
    middle = mean(values)
    assert middle is not None
    return math.fsum((x - middle) ** 2 for x in values) / (len(values) - 1)


def _fieller(
    mean_a: float, mean_b: float, var_a: float, var_b: float, both: float, t: float
) -> Interval | None:
    """Return the interval of mean_b / mean_a - 1 (Fieller 1954); None if A's mean may be 0."""
    square = mean_a * mean_a - t * t * var_a
    if square <= 0:
        return None
    middle = mean_a * mean_b - t * t * both
    inside = middle * middle - square * (mean_b * mean_b - t * t * var_b)
    half = math.sqrt(max(0.0, inside))
    return (middle - half) / square - 1, (middle + half) / square - 1


def agreement(same: Sequence[Sequence[bool]], margin: float) -> Equivalence | None:
    """Test if two runs disagree in at most a share ``margin`` of answers; ``difference`` is minus that share.

    ``same`` holds one list of attempts for each problem.
    """
    if not same:
        return None
    share, n = mean_of(same), len(same)

    def interval_of(z: float) -> Interval:
        spread = share_interval(same, z)
        assert spread is not None
        return spread[0] - 1, min(0.0, spread[1] - 1)

    interval = interval_of(Z90)
    p = _p_of(interval_of, margin)
    return Equivalence(
        "agreement", n, None, share, share - 1, interval, margin, p, _judged(interval, margin)
    )


@dataclass(frozen=True)
class Answer:
    """The compared properties of one answer."""

    correct: bool | None
    answer: str | None
    cut_off: bool
    tokens: int
    thinking: int | None  # characters; None without thinking
    problem: str  # the problem that it is an attempt at

    @classmethod
    def of_line(cls, line: Any) -> Answer:
        """Read a line of problems.jsonl."""
        cut_off, thinking = line["finish"] == "budget", thinking_of(line.get("text") or "")
        about = line["tokens"], thinking, problem_of(line)
        return cls(line["correct"], line.get("answer"), cut_off, *about)


def thinking_of(text: str) -> int | None:
    """Return the number of characters of a text's thinking; None if it has none."""
    before, closed, _ = text.partition("</think>")
    return len(before) if closed or "<think>" in text else None


def compared(
    a: Sequence[Answer], b: Sequence[Answer], margin: float, paired: bool
) -> list[Equivalence]:
    """Compare everything that a relaxed rule may change."""
    graded_a, graded_b = list(a), list(b)
    pairs = list(zip(a, b, strict=True)) if paired else []
    if paired:
        graded = [(x, y) for x, y in pairs if None not in (x.correct, y.correct)]
        graded_a, graded_b = [x for x, _ in graded], [y for _, y in graded]
    right_a, right_b = (
        _by_problem([x for x in side if x.correct is not None], lambda x: bool(x.correct))
        for side in (graded_a, graded_b)
    )
    cut_a, cut_b = (_by_problem(side, lambda x: x.cut_off) for side in (a, b))
    found = [
        shares("pass@1", right_a, right_b, margin, paired),
        shares("cut off", cut_a, cut_b, margin, paired),
    ]
    if all(x.thinking is not None for x in (*a, *b)):
        thought_a, thought_b = (_means(side, lambda x: float(x.thinking or 0)) for side in (a, b))
        found.append(lengths("thinking", thought_a, thought_b, margin, paired))
    tokens_a, tokens_b = (_means(side, lambda x: float(x.tokens)) for side in (a, b))
    found.append(lengths("length", tokens_a, tokens_b, margin, paired))
    if paired:
        told = [(x, y) for x, y in pairs if x.answer is not None or y.answer is not None]
        same = by_problem((x.problem for x, _ in told), (x.answer == y.answer for x, y in told))
        found.append(agreement(same, margin))
    return [one for one in found if one is not None]


def _by_problem(side: Sequence[Answer], value: Callable[[Answer], V]) -> list[list[V]]:
    return by_problem((x.problem for x in side), map(value, side))


def _means(side: Sequence[Answer], value: Callable[[Answer], float]) -> list[float]:
    """Return for each problem the mean over its attempts."""
    return [g[0] if len(g) == 1 else math.fsum(g) / len(g) for g in _by_problem(side, value)]


def sentence(one: Equivalence) -> str:
    """Return the finding as a sentence that claims no more than was shown."""
    low, high = (100 * end for end in one.interval)
    unit = "%" if one.about in ("thinking", "length") else "points"
    verdicts = {
        "equivalent": f"equivalent within {100 * one.margin:g} {unit}",
        "beyond": f"differs by more than {100 * one.margin:g} {unit}",
        "unknown": f"not shown to be within {100 * one.margin:g} {unit}",
    }
    names = {"cut off": "cut off at the budget", "thinking": "length of the thinking", "length": "length of the answer", "agreement": "agreement of the answers"}  # fmt: skip
    value = f"{100 * one.difference:+.1f} {unit}"
    return (
        f"{names.get(one.about, one.about)}: {verdicts[one.verdict]} ({value}, 90 %: {low:+.1f} to {high:+.1f};"
        f" TOST p {'< 0.001' if one.p < 0.001 else f'= {one.p:.3f}'}, {one.n} problems)"
    )
