"""What the answers of all engines come to: speed with intervals, and whether the texts are the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rivals.catalogue import OURS
from rivals.measure import PLAIN, Line, first_difference
from semspec.results.metrics import Interval, rate_ratio, ratio, ratio_interval

TIE = 1e-3  # a token this much less likely, in nats, is the likeliest one but for rounding
Rates = dict[str, tuple[int, float]]  # by problem: tokens, and the median of their seconds


def row_of(lines: Sequence[Line], rival: str, kind: str) -> dict[str, Any]:
    """Return the figures of one engine with one kind of speculation."""
    own = _of(lines, rival, kind)
    errors = sorted({line["error"] for line in own if "error" in line})
    row: dict[str, Any] = {"rival": rival, "kind": kind, "errors": errors}
    rates = rates_of(lines, rival, kind)
    if not rates:
        return row
    plain, ours = rates_of(lines, rival, PLAIN), rates_of(lines, OURS, PLAIN)
    timed = [line for line in own if _timed(line)]
    passes = [(line["count"], line["passes"]) for line in timed if line.get("passes")]
    row |= {
        "problems": len(rates),
        "tokens": sum(tokens for tokens, _ in rates.values()),
        "seconds": sum(seconds for _, seconds in rates.values()),
        "tokens_per_second": rate(rates),
        "tokens_per_second_interval": ratio_interval(list(rates.values())),
        "tokens_per_cpu_second": rate(rates_of(lines, rival, kind, "cpu")),
        "cpu_per_wall": ratio(sum(x["cpu"] for x in timed), sum(x["wall"] for x in timed)),
        "tokens_per_pass": ratio(sum(n for n, _ in passes), sum(p for _, p in passes)),
        "parity": parity_of(lines, rival, kind),
    }
    for name, other in (("over_own_plain", plain), ("over_our_plain", ours)):
        row[name], row[f"{name}_interval"] = compared(rates, other)
    return row


def best_of(rows: Sequence[Mapping[str, Any]], rival: str) -> Mapping[str, Any] | None:
    """Return an engine's fastest row whose text is its own plain one."""
    able = [r for r in rows if r["rival"] == rival and lossless(r)]
    return max(able, key=lambda r: r["tokens_per_second"], default=None)


def lossless(row: Mapping[str, Any]) -> bool:
    """Return whether a row has figures, and its text is what the engine writes without drafts, up to rounding."""
    return "parity" in row and row["parity"]["own"] != "differs"


def rates_of(lines: Sequence[Line], rival: str, kind: str, clock: str = "wall") -> Rates:
    """Return tokens and the median seconds, by one of the clocks, of every problem that was timed."""
    walls: defaultdict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = {}
    for line in _of(lines, rival, kind):
        if _timed(line):
            walls[line["problem"]].append(line[clock])
            counts[line["problem"]] = line["count"]
    return {problem: (counts[problem], median(seconds)) for problem, seconds in walls.items()}


def rate(rates: Rates) -> float:
    """Return tokens a second over all problems."""
    return sum(tokens for tokens, _ in rates.values()) / sum(s for _, s in rates.values())


def compared(
    own: Rates, other: Rates, *, seed: int = 0, resamples: int = 2000
) -> tuple[float | None, Interval | None]:
    """Return the ratio of two rates over the same problems, and its 95 % bootstrap interval."""
    both = sorted(own.keys() & other.keys())
    if not both:
        return None, None
    return rate_ratio([(*own[p], *other[p]) for p in both], seed=seed, resamples=resamples)


def parity_of(lines: Sequence[Line], rival: str, kind: str) -> dict[str, Any]:
    """Return whether the texts are the reference's, and those that the engine writes without drafts.

    ``same``, ``rounding`` where every text parts at two tokens that are as likely but for ``TIE``, or ``differs``.
    """
    told = [x for x in _of(lines, rival, kind) if "parts" in x]
    parted = [x for x in told if x["parts"] is not None]
    gaps = [abs(x["log_probabilities"][0] - x["log_probabilities"][1])
            for x in parted if "log_probabilities" in x]  # fmt: skip
    first = max(parted, key=_gap, default=None)
    return {
        "reference": _verdict(len(parted), gaps),
        "same": len(told) - len(parted),
        "of": len(told),
        "own": _own(lines, rival, kind),
        "largest_gap": max(gaps, default=0.0),
        "example": first and {n: first.get(n) for n in ("problem", "parts", "tokens", "log_probabilities")},
    }  # fmt: skip


def _gap(line: Line) -> float:
    one, other = line.get("log_probabilities", (0.0, 0.0))
    return abs(one - other)


def _verdict(parted: int, gaps: Sequence[float]) -> str:
    if not parted:
        return "same"
    return "rounding" if len(gaps) == parted and max(gaps) < TIE else "differs"


def _own(lines: Sequence[Line], rival: str, kind: str) -> str:
    """Return the verdict on an engine's drafts beside its own plain text."""
    ids = {(x["kind"], x["problem"]): x["ids"] for x in lines
           if x["rival"] == rival and x.get("repeat") == 0 and "ids" in x}  # fmt: skip
    gaps = {(x["kind"], x["problem"]): x for x in lines if x["rival"] == rival and "parts" in x}
    pairs = [(p, text, ids[PLAIN, p]) for (k, p), text in ids.items() if k == kind and (PLAIN, p) in ids]  # fmt: skip
    parted = [p for p, text, plain in pairs if first_difference(text, plain) is not None]
    if not parted:
        return "same"
    # beside the reference either text may part from it, at a tie each
    near = [gaps[k, p] for p in parted for k in (kind, PLAIN) if (k, p) in gaps]
    close = all(x["parts"] is None or ("log_probabilities" in x and _gap(x) < TIE) for x in near)
    return "rounding" if near and close else "differs"


def _of(lines: Sequence[Line], rival: str, kind: str) -> list[Line]:
    return [line for line in lines if line["rival"] == rival and line.get("kind") == kind]


def _timed(line: Line) -> bool:
    return isinstance(line.get("repeat"), int) and line["repeat"] > 0 and "wall" in line


def workload_figures(lines: Sequence[Line]) -> dict[str, Any]:
    """Return all rows of one workload, the versions, and what could not be run."""
    told = {x["rival"]: x for x in lines if "versions" in x}
    rows = [row_of(lines, name, kind) for name, x in told.items() for kind in x["kinds"]]
    return {
        "rows": rows,
        "versions": {name: x["versions"] for name, x in told.items()},
        "failed": {name: x["error"] for name, x in told.items() if "error" in x},
    }
