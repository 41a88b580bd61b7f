"""Measures what thresholds of ``accept=logprob`` do to the embedded target's accuracy with other drafts.

    python scripts/measure_thresholds.py --drafts embedded/tiny-draft runs/drafts/noise-0.2 --out runs/thresholds

Every pair solves the same problems, the target alone first. A trajectory depends on a threshold only through its
verdicts, so a threshold at which every verdict stays what it was is not run again: its line is copied. Lines go to
``OUT/NAME.jsonl``, one a problem and threshold, and a killed run goes on there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from script_kit import parser

from semspec.config import build, compose
from semspec.protocols import BenchmarkProblem
from semspec.rules.logprob import LogProb
from semspec.solver import Solution, Solver
from semspec.storage.files import LineFile, cut_torn_line, parse, whole_lines

THRESHOLDS = [-8.0, -6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5]
Line = dict[str, Any]


def line_of(solver: Solver, done: Solution, threshold: float | None) -> Line:
    """Return the line of one solution."""
    grade = solver.config.benchmark.grade(done.problem, done.text)
    rounds = done.outcome.rounds
    accepted = [min(r.scores[: r.units_kept]) for r in rounds if r.units_kept]
    rejected = [r.scores[-1] for r in rounds if r.drafted and r.handed_over and r.scores]
    return {
        "id": done.problem.id,
        "threshold": threshold,
        "correct": grade.correct,
        "tokens": len(done.outcome.tokens),
        "by_target": sum(len(r.written) + len(r.handed) for r in rounds),
        "passes": {role: sum(r.passes.get(role, 0) for r in rounds) for role in ("target", "draft")},
        "drafted": sum(len(r.ends) for r in rounds),
        "kept": sum(r.units_kept for r in rounds),
        "lowest_accepted": min(accepted, default=0.0),
        # a step that was rejected because it repeats an earlier one may have any score
        "highest_rejected": max((s for s in rejected if threshold is None or s < threshold), default=None),
    }  # fmt: skip


def same(line: Mapping[str, Any], threshold: float) -> bool:
    """Say if a stricter threshold leaves every verdict of a line as it was."""
    return bool(line["threshold"] <= threshold <= line["lowest_accepted"])


def measure(
    target: str,
    draft: str,
    problems: int,
    seed: int,
    temperature: float,
    at_once: int,
    thresholds: Sequence[float],
    file: Path,
) -> None:
    """Write the lines of one pair that are missing; ``draft=""`` is the target alone."""
    options = [f"benchmark.seed={seed}", f"concurrency={at_once}", "accept=logprob", "split=paragraph"]  # fmt: skip
    options += [f"model.path={target}", f"temperature={temperature}"]
    options += ["draft=lm", f"draft.model.path={draft}"] if draft else ["draft=none"]
    cut_torn_line(file)
    known = {(x["id"], x["threshold"]): x for raw in whole_lines(file) if (x := parse(raw))}
    with Solver(build(compose(options))) as solver, LineFile(file) as out:
        asked = list(islice(solver.config.benchmark.problems(), problems))

        def write(lines: Iterable[Line]) -> None:
            for line in lines:
                known[line["id"], line["threshold"]] = line
                out.append(line)

        for start in range(0, len(asked), 2 * at_once):
            group = asked[start : start + 2 * at_once]
            if not draft:
                left = [p for p in group if (p.id, None) not in known]
                if not left:
                    continue
                write(line_of(solver, done, None) for done in solver.solve(left, "plain"))
                continue
            before: float | None = None
            for threshold in sorted(thresholds):
                left = []
                for problem in group:
                    if (problem.id, threshold) in known:
                        continue
                    line = known.get((problem.id, before)) if before is not None else None
                    if line is not None and same(line, threshold):
                        write([line | {"threshold": threshold, "copied": True}])
                    else:
                        left.append(problem)
                solver.rule = LogProb(threshold=threshold)
                write(line_of(solver, done, threshold) for done in _solved(solver, left))
                before = threshold


def _solved(solver: Solver, problems: Sequence[BenchmarkProblem]) -> Iterable[Solution]:
    return solver.solve(problems, "speculative") if problems else ()


def main() -> None:
    a = parser(
        __doc__, target="embedded/tiny-target", drafts=[""], out=Path, problems=200, seed=20261214,
        temperature=0.6, at_once=16, thresholds=THRESHOLDS,
    ).parse_args()  # fmt: skip
    a.out.mkdir(parents=True, exist_ok=True)
    for draft in a.drafts:
        name = Path(draft).name or "alone"
        how = a.seed, a.temperature, a.at_once, a.thresholds
        measure(a.target, draft, a.problems, *how, a.out / f"{name}.jsonl")


if __name__ == "__main__":
    main()
