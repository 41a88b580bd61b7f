"""Group the jobs of a sweep into comparable ones, and find those that no other job beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from semspec.report.runs import SAME_PROBLEMS, SAME_TARGET, Run
from semspec.storage.provenance import without_folders

Group = list[tuple[int, Run]]  # numbered as in the table
Placed = tuple[int, Run, float, float]  # number, run, speed-up, pass@1


def comparable(numbered: Group) -> dict[str, Group]:
    """Group jobs by the options that must be equal in a comparison: target, engine, problems."""
    groups: dict[str, Group] = {}
    for number, run in numbered:
        same = run.of((*SAME_TARGET, *SAME_PROBLEMS))
        known = [(k.removeprefix("plugins."), v) for k, v in same.items() if v is not None]
        name = ", ".join(f"{k}={without_folders(str(v))}" for k, v in known)
        groups.setdefault(name or "configuration unknown", []).append((number, run))
    parts = [set(name.split(", ")) for name in groups]
    shared = set.intersection(*parts) if len(parts) > 1 else set()
    short: dict[str, Group] = {}
    for name, group in groups.items():  # leave out the parts that all have in common
        own = ", ".join(part for part in name.split(", ") if part not in shared)
        short.setdefault(own or name, []).extend(group)
    return short


def pareto(group: Group) -> Group:
    """Return the finished jobs that no other, nor the target alone, beats in both quality and speed."""
    done = sorted((p for p in placed(group) if p[1].finished), key=lambda p: p[2])
    alone = quality_alone(group)
    best = alone if alone is not None else -1.0
    front = []
    for number, run, speed, quality in done:
        own = (speed, quality)
        beaten = any(s >= speed and q >= quality and (s, q) != own for *_, s, q in done)
        if not beaten and not (speed <= 1 and quality <= best):
            front.append((number, run))
    return front


def placed(group: Group) -> list[Placed]:
    """Return the jobs that have both figures."""
    return [
        (number, run, run.result["speedup"], run.result["pass_at_1"])
        for number, run in group
        if run.result["speedup"] is not None and run.result["pass_at_1"] is not None
    ]


def quality_alone(group: Group) -> float | None:
    """Return pass@1 of the target alone, from the job that graded the most problems with it."""
    known = [plain for _, run in group if (plain := run.result["plain"]) and plain["graded"]]
    best = max(known, key=lambda f: f["graded"], default=None)
    return None if best is None else float(best["pass_at_1"])


def shared_options(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Return the options that all jobs share, and each job's name without them."""
    parts = [list(run.overrides) or run.name.split(",") for run in runs]
    if not all("=" in part for own in parts for part in own):  # not names made of options
        return [], [run.name for run in runs]
    shared = [part for part in parts[0] if all(part in own for own in parts)]
    rest = [[part for part in own if part not in shared] for own in parts]
    if len(runs) == 1 or not all(rest):
        return [], [run.name for run in runs]
    names = [", ".join(own) for own in rest]
    count = Counter(names)  # the same options in two sweeps
    return shared, [n if count[n] == 1 else run.name for n, run in zip(names, runs, strict=True)]
