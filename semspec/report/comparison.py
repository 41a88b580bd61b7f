"""Compare two runs: is one faster or better than the other, or are the data inconclusive?

Each run also solved its problems with the target alone, and its speed-up is relative to that. Only the two speed-ups are
compared, never the seconds of different runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from semspec.errors import UserError
from semspec.report.runs import Run, read_run, unlike_machines
from semspec.results.attempts import by_problem, counted, mean_of, problem_of, summed
from semspec.results.equivalence import Answer, Equivalence, compared
from semspec.results.metrics import Interval, central, flipped, ratio
from semspec.results.significance import ALPHA, FEWEST, by_problem_apart, paired_by_problem
from semspec.storage.digest import value_of

Pair = tuple[float, float]  # seconds of the target alone, and of the configuration
Solved = dict[str, Any]  # the compared parts of a problem's line
Lines = Sequence[Solved]
asked = itemgetter("question", "gold")
Verdict = Literal["higher", "lower", "same", "unknown", "not compared"]
DRAWN = frozenset({"benchmark.seed", "benchmark.order"})  # select problems of the same kind
KIND = ("plugins.benchmark", "benchmark")
TARGET = ("model.path", "model.revision")
ENGINE = ("plugins.engine", "engine.dtype", "engine.device")
DECODING = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "model.thinking")


@dataclass(frozen=True)
class Finding:
    """The answer to one question; ``why`` names the test behind the verdict, or why there is none."""

    verdict: Verdict
    value: float | None = None  # speed: B's speed-up over A's; quality: B's pass@1 minus A's
    interval: Interval | None = None  # 95 %
    p: float | None = None
    why: str = ""


@dataclass
class Comparison:
    """The comparison of run B with run A."""

    a: str
    b: str
    problems: int  # compared problems
    paired: bool  # the same problems in both
    speed: Finding
    quality: Finding
    speedups: tuple[float | None, float | None] = (None, None)
    pass_at_1: tuple[float | None, float | None] = (None, None)
    lost: int | None = None  # right in A only
    won: int | None = None  # right in B only
    notes: list[str] = field(default_factory=list)
    equivalence: list[Equivalence] = field(default_factory=list)


def compare(a: Path, b: Path, *, margin: float = 0.02, seed: int = 0) -> Comparison:
    """Compare two runs; pass@1 counts as the same if the interval of its difference is within ``margin``.

    Raises UserError if the runs cannot be compared.
    """
    if a.resolve() == b.resolve():
        raise UserError(f"{a} and {b} are the same folder: give two runs")
    first, second = read_run(a), read_run(b)
    _refuse_unlike(first, second)
    lines_a, lines_b = _solved(first), _solved(second)
    for run, lines in ((first, lines_a), (second, lines_b)):
        if not lines:
            raise UserError(f"{run.folder} has no solved problems yet: compare when some are done")
    # ids are only numbers, so compare the questions, too
    shared = [n for n, one in lines_a.items() if n in lines_b and asked(one) == asked(lines_b[n])]
    # at least half of the smaller run: a small overlap by chance is not a pairing
    paired = len(shared) >= max(1, min(len(lines_a), len(lines_b)) / 2)
    own_a = [lines_a[name] for name in shared] if paired else list(lines_a.values())
    own_b = [lines_b[name] for name in shared] if paired else list(lines_b.values())
    quality, lost, won = _quality(own_a, own_b, paired, margin)
    over = ""
    if not paired:
        over = "the runs solved different problems: compared as two samples, which has less power"
    elif len(shared) < max(len(lines_a), len(lines_b)):
        problems = len(_problems(own_a))
        what = (
            f"{problems} problems"
            if len(shared) == problems
            else f"{len(shared)} answers to {problems} problems"
        )
        over = f"compared over the {what} that both runs solved"
    return Comparison(
        a=first.name,
        b=second.name,
        problems=min(len(_problems(own_a)), len(_problems(own_b))),
        paired=paired,
        speed=_speed(first, second, own_a, own_b, paired, seed),
        quality=quality,
        speedups=(_speedup(_walls(own_a)), _speedup(_walls(own_b))),
        pass_at_1=(_share(own_a), _share(own_b)),
        lost=lost,
        won=won,
        notes=_notes(first, second, own_a, own_b, over),
        equivalence=compared(
            [one["said"] for one in own_a], [one["said"] for one in own_b], margin, paired
        ),
    )


def _solved(run: Run) -> dict[str, Solved]:
    """Return the needed parts of each line by id, without the texts, which may be long."""
    return {
        line["id"]: {name: line.get(name) for name in ("question", "gold", "correct", "wall")}
        | {"alone": line["plain"]["wall"] if line["plain"] else None}
        | {"said": Answer.of_line(line), "problem": problem_of(line)}
        for line in run.problem_lines()
    }


def _refuse_unlike(a: Run, b: Run) -> None:
    for run in (a, b):
        if not run.options:
            raise UserError(
                f"{run.folder} has no config.json that can be read: what it ran is unknown"
            )
    for parts, names in (("targets", TARGET), ("engines", ENGINE), ("benchmarks", KIND)):
        if differs := _differing(a, b, names, DRAWN):
            raise UserError(
                f"the runs have different {parts} ({differs}): neither quality nor speed can be"
                " compared; run both configurations with the same"
            )


def _differing(a: Run, b: Run, names: Sequence[str], free: frozenset[str] = frozenset()) -> str:
    own, other = a.of(names), b.of(names)
    values = (
        (k, *(value_of(side, k, "not recorded") for side in (own, other)))
        for k in sorted({*own, *other} - free)
    )
    known = (f"{k} {one} and {another}" for k, one, another in values if one != another)
    return "; ".join(islice(known, 3))


def _problems(lines: Lines) -> set[str]:
    return {line["problem"] for line in lines}


# ---- speed ----------------------------------------------------------------------------------------


def _walls(lines: Lines) -> list[Pair]:
    """Return each problem's seconds, summed over its attempts."""
    both = [line for line in lines if line["alone"] is not None]
    walls = [(line["alone"], line["wall"]) for line in both]
    return summed((line["problem"] for line in both), walls)


def _speedup(walls: Sequence[Pair]) -> float | None:
    return ratio(sum(plain for plain, _ in walls), sum(own for _, own in walls))


def _speed(a: Run, b: Run, own_a: Lines, own_b: Lines, paired: bool, seed: int) -> Finding:
    walls_a, walls_b = _walls(own_a), _walls(own_b)
    sides = ((a, own_a), (b, own_b))
    without = [r.name for r, own in sides if any(line["alone"] is None for line in own)]
    why = ""
    if without:
        why = (
            f"{without[0]} did not run the target alone (plain=false), and seconds of different runs"
            " depend as much on the machine's load as on the method"
        )
    elif a.config.get("concurrency", 1) != b.config.get("concurrency", 1):
        why = "the runs solved different numbers of problems at a time (concurrency)"
    elif differs := _differing(a, b, ("engine",)):
        why = f"the engines were set differently ({differs})"
    elif differs := unlike_machines((a, b)):
        why = f"the runs were made on different machines ({differs})"
    if why:
        return Finding("not compared", why=why)
    fewest = min(len(walls_a), len(walls_b))
    value, interval = speed_ratio(walls_a, walls_b, paired, seed=seed)
    if value is None or interval is None or fewest < FEWEST:
        why = f"{fewest} problem{'' if fewest == 1 else 's'}: at least {FEWEST} are needed"
        return Finding("unknown", value, None, why=why)
    verdict: Verdict = "higher" if interval[0] > 1 else "lower" if interval[1] < 1 else "unknown"
    return Finding(verdict, value, interval, why="bootstrap over problems")


def speed_ratio(
    a: Sequence[Pair], b: Sequence[Pair], paired: bool, *, seed: int = 0, resamples: int = 2000
) -> tuple[float | None, Interval | None]:
    """Return B's speed-up divided by A's, and its percentile bootstrap interval; paired runs draw the same problems."""
    ups = _speedup(a), _speedup(b)
    if not ups[0] or not ups[1] or min(len(a), len(b)) < 2:
        return None, None
    rng = random.Random(seed)
    drawn = []
    for _ in range(resamples):
        if paired:
            chosen = rng.choices(range(len(a)), k=len(a))
            up_a, up_b = _speedup([a[i] for i in chosen]), _speedup([b[i] for i in chosen])
        else:
            up_a = _speedup(rng.choices(a, k=len(a)))
            up_b = _speedup(rng.choices(b, k=len(b)))
        if up_a and up_b:
            drawn.append(up_b / up_a)
    return ups[1] / ups[0], central(drawn)


# ---- quality --------------------------------------------------------------------------------------


def _graded(lines: Lines) -> list[list[bool]]:
    """Return for each problem which of its graded attempts are right."""
    graded = [line for line in lines if line["correct"] is not None]
    return by_problem((x["problem"] for x in graded), (bool(x["correct"]) for x in graded))


def _share(lines: Lines) -> float | None:
    graded = _graded(lines)
    return mean_of(graded) if graded else None


def _quality(
    own_a: Lines, own_b: Lines, paired: bool, margin: float
) -> tuple[Finding, int | None, int | None]:
    lost = won = None
    if paired:
        pairs = [
            (x["problem"], (x["correct"], y["correct"])) for x, y in zip(own_a, own_b, strict=True)
        ]
        sides = [(name, pair) for name, pair in pairs if None not in pair]
        if not sides:
            return Finding("not compared", why="nothing was graded in both runs"), None, None
        graded = by_problem((name for name, _ in sides), (pair for _, pair in sides))
        lost, won = (sum(p == kind for _, p in sides) for kind in ((True, False), (False, True)))
        value, interval = paired_by_problem(graded)
        p = flipped([sum(y - x for x, y in group) for group in graded])
        several = len(sides) > len(graded)
        test = "exact permutation test by problem" if several else "McNemar's exact test"
        why = f"{test}, {lost} lost and {won} won of {len(sides)}{' answers' if several else ''}"
    else:
        graded_a, graded_b = _graded(own_a), _graded(own_b)
        if not graded_a or not graded_b:
            return Finding("not compared", why="nothing was graded in one of the runs"), None, None
        value, interval, p = by_problem_apart(graded_a, graded_b)
        answers_a, answers_b = (
            [right for g in side for right in g] for side in (graded_a, graded_b)
        )
        told = (
            f"{sum(answers_a)} of {len(answers_a)} and {sum(answers_b)} of {len(answers_b)} right"
        )
        several = len(answers_a) > len(graded_a) or len(answers_b) > len(graded_b)
        why = f"{'interval over problems' if several else 'exact permutation test'}, {told}"
    verdict: Verdict = "unknown"
    if p < ALPHA:
        verdict = "higher" if value > 0 else "lower"
    elif -margin <= interval[0] and interval[1] <= margin:
        verdict = "same"
    return Finding(verdict, value, interval, p, why), lost, won


# ---- notes for the reader ---------------------------------------------------------------------------


def _notes(a: Run, b: Run, own_a: Lines, own_b: Lines, over: str) -> list[str]:
    out = []
    for name, run in (("A", a), ("B", b)):
        if not run.finished:
            of = f"the figures are of {counted(run.result)}"
            out.append(f"{name} is not finished ({run.state}): {of}")
    out += [over] if over else []
    if differs := _differing(a, b, DECODING):
        out.append(f"decoding differs ({differs}): any difference may come from that")
    alone = [sum(plain for plain, _ in _walls(own)) / len(own) for own in (own_a, own_b) if own]
    if len(alone) == 2 and min(alone) > 0 and max(alone) / min(alone) > 1.25:
        slower = "A" if alone[0] > alone[1] else "B"
        out.append(
            f"the target alone took {max(alone) / min(alone):.2f} times as long in {slower}: its machine was"
            " busier (or its answers longer); each speed-up is over the target of the same run"
        )
    return out
