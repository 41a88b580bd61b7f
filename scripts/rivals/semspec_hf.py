"""semspec on its own forward pass (``engine=hf``), with the lossless rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rivals.base import Workload, Written, versions_of
from semspec.choices.settle import expand_shorthands
from semspec.config import build, compose
from semspec.engines.pool import Engines
from semspec.protocols import BenchmarkProblem
from semspec.results.figures import Solve
from semspec.results.records import Mode
from semspec.solver import Solver

COMMON = ("split=token", "accept=lossless", "temperature=0", "engine=hf", "quiet=true")
PAIR = {  # with the embedded draft model and the head that was trained for the target
    "lm, chain of 5": ("draft=tiny", "tree=chain", "draft_length=5", "adaptive=false"),
    "lm, chain of 10": ("draft=tiny", "tree=chain", "draft_length=10", "adaptive=false"),
    "lm, adaptive to 16": ("draft=tiny", "tree=chain", "draft_length=16", "adaptive=true"),
    "eagle3, chain of 6": ("draft=eagle3", "tree=chain", "draft_length=6", "adaptive=false"),
    "eagle3, dynamic tree": ("draft=eagle3", "adaptive=false"),
    "eagle3, adaptive": ("draft=eagle3", "adaptive=true"),
}
COPYING = {name: (f"draft={name}",) for name in ("prompt_lookup", "suffix", "pld_plus", "adapld")}


class Semspec:
    name = "semspec"

    def __init__(self, workload: Workload, folder: Path) -> None:
        options = (PAIR if workload.draft else {}) | COPYING
        self.kinds = tuple(options)
        self.limit, self.engines = workload.limit, Engines()
        made = {kind: self._solver(workload, given) for kind, given in options.items()}
        self.alone = self._solver(workload, ("draft=none",))
        for solver in (self.alone, *made.values()):
            solver.fetch()
        for solver in (self.alone, *made.values()):
            solver.load()
        self.solvers = made
        self.problems = {p.ids: BenchmarkProblem(p.id, p.question) for p in workload.problems}
        for ids, problem in self.problems.items():
            found = tuple(self.alone.text.prompt(problem.question)[1])
            assert found == ids, f"{problem.id}: other ids than the other engines are given"

    def _solver(self, workload: Workload, options: Sequence[str]) -> Solver:
        limit = f"max_new_tokens={workload.limit}"
        given = [f"model={workload.model}", limit, *COMMON, *options]
        config = build(compose(expand_shorthands(given)))
        return Solver(config, shared=self.engines)

    def versions(self) -> Mapping[str, str]:
        return versions_of("semspec", "torch")

    def plain(self, ids: Sequence[int], limit: int) -> Written:
        return self._solve(self.alone, "plain", ids, limit)

    def speculative(self, kind: str, ids: Sequence[int], limit: int) -> Written:
        return self._solve(self.solvers[kind], "speculative", ids, limit)

    def _solve(self, solver: Solver, mode: Mode, ids: Sequence[int], limit: int) -> Written:
        (done,) = solver.solve([self.problems[tuple(ids)]], mode, limit)
        outcome: Any = done.outcome
        ended = outcome.finish == "eos"
        tokens = outcome.tokens[:-1] if ended else outcome.tokens
        return Written(list(tokens), ended, Solve.from_outcome(outcome, done.text).target_passes)

    def close(self) -> None:
        self.engines.close()
