"""Averages over seeds: the joint figures of runs that differ only in their seeds.

All seeds answer the same problems, so each problem is first averaged over its seeds, and intervals are over problems, as
with several attempts (``results.attempts``). Three seeds of 30 problems tell more than one seed, but less than 90
problems. If another ``benchmark.seed`` draws other problems (``Benchmark.seed_draws``), all problems are pooled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from semspec import registry
from semspec.config import SHOWN_ONLY
from semspec.results.attempts import by_problem, problem_of
from semspec.results.metrics import Interval, ratio, ratio_interval, summarise
from semspec.results.records import Line, RunFolder
from semspec.storage.digest import digest, flat

SEED, DRAWING = "seed", "benchmark.seed"
Named = tuple[str, RunFolder]  # a finished run and its job's name
Pair = tuple[float, float]


@dataclass(frozen=True)
class Average:
    """The joint figures of jobs that differ only in their seeds."""

    options: str  # the part that their names share
    jobs: tuple[str, ...]
    figures: dict[str, Any]  # as in result.json, plus ``acceptance_rate_interval``

    @property
    def name(self) -> str:
        counted = f"mean of {len(self.jobs)} seeds"
        return f"{self.options}: {counted}" if self.options else counted

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "jobs": list(self.jobs), "figures": self.figures}


def averages(runs: Iterable[Named]) -> list[Average]:
    """Average finished runs over their seeds: one entry for each group that agrees in all other options.

    A group of one run has no average. Of two runs with the same seeds the first counts.
    """
    found = [list(group.values()) for group in _by_seeds(runs) if len(group) > 1]
    made = []
    for group in found:
        names = tuple(name for name, _ in group)
        options = _in_common(names)
        if not options and len(found) > 1:
            options = f"{names[0]} and others"
        made.append(Average(options, names, figures_of([folder for _, folder in group])))
    return made


def figures_of(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the joint figures of several runs; each problem is first averaged over the runs.

    ``metrics.summarise`` computes them with the runs as further attempts at the same problems. Speed-up and
    acceptance are ratios of sums of these averages over problems, with a bootstrap over problems.
    """
    units: list[tuple[str, Pair]] = []  # problem, (kept, drafted)
    walls: list[tuple[str, Pair]] = []  # problem, (target alone, this configuration)

    def lines() -> Iterator[Line]:
        for folder in folders:
            for line in folder.problem_lines():
                # ids may be mere numbers, so identify a problem by its question, too
                asked = {name: line.get(name) for name in ("question", "gold")}
                problem = digest({"id": problem_of(line), **asked})
                units.append((problem, (line["kept_units"], line["drafted_units"])))
                if line["plain"]:
                    walls.append((problem, (line["plain"]["wall"], line["wall"])))
                yield {**line, "attempt_of": problem}

    figures = summarise(lines())
    for name, pairs in (("speedup", walls), ("acceptance_rate", units)):
        figures[name], figures[f"{name}_interval"] = _ratio_of_means(pairs)
    return figures


def _ratio_of_means(pairs: Sequence[tuple[str, Pair]]) -> tuple[float | None, Interval | None]:
    """Return sum(first) / sum(second) of the problems' means, and its bootstrap interval."""
    groups = by_problem((problem for problem, _ in pairs), (pair for _, pair in pairs))
    means = [(sum(a for a, _ in g) / len(g), sum(b for _, b in g) / len(g)) for g in groups]
    return ratio(sum(a for a, _ in means), sum(b for _, b in means)), ratio_interval(means)


def _by_seeds(runs: Iterable[Named]) -> list[dict[tuple[Any, Any], Named]]:
    """Group runs by all options except the seeds; within a group, index them by seeds."""
    alike: dict[str, list[tuple[Named, dict[str, Any]]]] = {}
    for name, folder in runs:
        if config := folder.config:
            options = flat(config, SHOWN_ONLY)
            alike.setdefault(_rest(options), []).append(((name, folder), options))
    groups: dict[tuple[str, Any], dict[tuple[Any, Any], Named]] = {}
    for rest, members in alike.items():
        several = len({options.get(DRAWING) for _, options in members}) > 1
        pooled = several and _seed_draws(members[0][1])
        for run, options in members:
            seeds = options.get(SEED), options.get(DRAWING)
            groups.setdefault((rest, None if pooled else seeds[1]), {}).setdefault(seeds, run)
    return list(groups.values())


def _rest(options: dict[str, Any]) -> str:
    return digest({k: v for k, v in options.items() if k not in (SEED, DRAWING)})


def _seed_draws(options: dict[str, Any]) -> bool:
    """Return True if another seed of the benchmark draws other problems."""
    known = registry.plugins("benchmark").get(options.get("plugins.benchmark", ""))
    return known is not None and bool(known.cls.seed_draws)


def _in_common(names: Sequence[str]) -> str:
    """Return the parts common to all names: ``accept=logprob`` for ``accept=logprob,seed=0`` and so on."""
    parts = [re.split(r"[,/]\s*", name) for name in names]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts))
