"""Test if two ways to decode are equivalent within a margin: two one-sided tests (TOST), at 5 % each.

That no difference was found says little: there may have been too few problems. Equivalence is a finding of its own:
the 90 % interval of the difference lies within the margin (Schuirmann 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semspec.deferred import special
from semspec.results.metrics import Interval, mean, wilson
from semspec.results.significance import ALPHA, difference, paired_difference

Z90 = 1.6448536269514722  # the normal distribution's 95 % quantile: one side of a 90 % interval
FEWEST = 6  # values that a mean's interval needs
Verdict = Literal["equivalent", "beyond", "unknown"]


@dataclass(frozen=True)
class Equivalence:
    """The answer for one figure; ``difference`` is B's minus A's, of lengths as a part of A's."""

    about: str  # pass@1, cut off, thinking, length, agreement
    n: int
    a: float | None
    b: float | None
    difference: float
    interval: Interval  # 90 %
    margin: float
    p: float  # of the two one-sided tests: how likely this is if the truth is outside of the margin
    verdict: Verdict


def _judged(interval: Interval, margin: float) -> Verdict:
    if -margin <= interval[0] and interval[1] <= margin:
        return "equivalent"
    return "beyond" if interval[0] > margin or interval[1] < -margin else "unknown"


def _p_of(interval_of: Callable[[float], Interval], margin: float) -> float:
    """Return the level at which the interval just fits into the margin."""
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
    about: str, a: Sequence[bool], b: Sequence[bool], margin: float, paired: bool
) -> Equivalence | None:
    """Compare two shares over the same problems, or over different ones; None if there are none."""
    if not a or not b:
        return None
    if paired:
        pairs = list(zip(a, b, strict=True))
        both, only_a, only_b, neither = (pairs.count(kind) for kind in _SIDES)

        def interval_of(z: float) -> Interval:
            return paired_difference(both, only_a, only_b, neither, z)
    else:

        def interval_of(z: float) -> Interval:
            return difference(sum(a), len(a), sum(b), len(b), z=z)

    own, other = sum(a) / len(a), sum(b) / len(b)
    interval = interval_of(Z90)
    p = _p_of(interval_of, margin)
    n = min(len(a), len(b))
    return Equivalence(
        about, n, own, other, other - own, interval, margin, p, _judged(interval, margin)
    )


_SIDES = ((True, True), (True, False), (False, True), (False, False))


def lengths(
    about: str, a: Sequence[float], b: Sequence[float], margin: float, paired: bool
) -> Equivalence | None:
    """Compare two means by their ratio, with Fieller's interval; None where it cannot be told."""
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

    # above 1 - margin, and below 1 + margin
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


def agreement(same: Sequence[bool], margin: float) -> Equivalence | None:
    """Test if two runs agree in all answers but a share of ``margin``; the difference is minus what they do not."""
    if not same:
        return None
    agreed, n = sum(same), len(same)

    def interval_of(z: float) -> Interval:
        spread = wilson(agreed, n, z)
        assert spread is not None
        return spread[0] - 1, min(0.0, spread[1] - 1)

    interval = interval_of(Z90)
    p = _p_of(interval_of, margin)
    share = agreed / n
    return Equivalence(
        "agreement", n, None, share, share - 1, interval, margin, p, _judged(interval, margin)
    )


@dataclass(frozen=True)
class Answer:
    """What is compared of one solved problem."""

    correct: bool | None
    answer: str | None
    cut_off: bool
    tokens: int
    thinking: int | None  # characters; None for a text without

    @classmethod
    def of_line(cls, line: Any) -> Answer:
        """Read a line of problems.jsonl."""
        cut_off, thinking = line["finish"] == "budget", thinking_of(line.get("text") or "")
        return cls(line["correct"], line.get("answer"), cut_off, line["tokens"], thinking)


def thinking_of(text: str) -> int | None:
    """Return the characters of a text's thinking; None if it has none."""
    before, closed, _ = text.partition("</think>")
    return len(before) if closed or "<think>" in text else None


def compared(
    a: Sequence[Answer], b: Sequence[Answer], margin: float, paired: bool
) -> list[Equivalence]:
    """Compare all that a relaxed rule may change."""
    graded_a, graded_b = list(a), list(b)
    if paired:
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if None not in (x.correct, y.correct)]
        graded_a, graded_b = [x for x, _ in pairs], [y for _, y in pairs]
    right_a, right_b = (
        [bool(x.correct) for x in side if x.correct is not None] for side in (graded_a, graded_b)
    )
    found = [
        shares("pass@1", right_a, right_b, margin, paired),
        shares("cut off", [x.cut_off for x in a], [x.cut_off for x in b], margin, paired),
    ]
    thought_a, thought_b = (
        [float(x.thinking) for x in side if x.thinking is not None] for side in (a, b)
    )
    if (len(thought_a), len(thought_b)) == (len(a), len(b)):
        found.append(lengths("thinking", thought_a, thought_b, margin, paired))
    found.append(lengths("length", [x.tokens for x in a], [x.tokens for x in b], margin, paired))
    if paired:
        answers = [(x.answer, y.answer) for x, y in zip(a, b, strict=True)]
        told = [x == y for x, y in answers if x is not None or y is not None]
        found.append(agreement(told, margin))
    return [one for one in found if one is not None]


def sentence(one: Equivalence) -> str:
    """Say what was found, in words that claim no more."""
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
