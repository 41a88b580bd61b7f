"""Measure how thresholds of ``accept=logprob`` affect a target's accuracy, including the one that a run measures.

    python scripts/measure_thresholds.py --drafts runs/variants/noise-0.2 --out runs/thresholds
    python scripts/measure_thresholds.py --target runs/variants/sharpness-0.3/target --temperature 0.18 \\
        --drafts runs/variants/sharpness-0.3/noise-0.2 --out runs/softer

After the target alone, every draft solves the same problems with each threshold on log-probabilities at temperature 1,
and with the threshold that ``accept=logprob`` measures before the first of these problems, as in a run
(``--score-temperature``: the temperature of its log-probabilities; auto, as in a run: the sampling's). A trajectory depends on a threshold only through its verdicts, so if
a threshold changes no verdict, its line is copied instead of run. Lines go to ``OUT/NAME.jsonl``,
one per problem and threshold, and a killed run resumes from there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from script_kit import markdown, parser, read

from semspec.config import build, compose
from semspec.protocols import BenchmarkProblem
from semspec.results.metrics import wilson
from semspec.results.significance import paired_by_problem
from semspec.rules.logprob import LogProb
from semspec.solver import Solution, Solver
from semspec.storage.files import LineFile, cut_torn_line, parse, whole_lines, write_json

THRESHOLDS = [-4.0]
RAW = 1.0  # the temperature that servers give log-probabilities at
Setting = tuple[float, float]  # the temperature of the scores, and the threshold
Line = dict[str, Any]
HEADINGS = (
    "threshold",
    "pass@1 [95 %]",
    "change, points",
    "steps accepted",
    "written by target",
    "tokens per pass",
)


def line_of(solver: Solver, done: Solution, setting: Setting | None) -> Line:
    """Return the line of one solution; ``None`` stands for the target alone."""
    at, threshold = setting or (RAW, None)
    grade = solver.config.benchmark.grade(done.problem, done.text)
    rounds = done.outcome.rounds
    accepted = [min(r.scores[: r.units_kept]) for r in rounds if r.units_kept]
    rejected = [r.scores[-1] for r in rounds if r.drafted and r.handed_over and r.scores]
    return {
        "id": done.problem.id,
        "temperature": at,
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


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a line; lines of earlier versions have scores at temperature 1."""
    return line["id"], line.get("temperature", RAW), line["threshold"]


def same(line: Mapping[str, Any], threshold: float) -> bool:
    """Return whether a stricter threshold leaves every verdict of a line unchanged."""
    return bool(line["threshold"] <= threshold <= line["lowest_accepted"])


def measured(solver: Solver, asked: Sequence[BenchmarkProblem], file: Path) -> Setting:
    """Return the threshold that a run on these problems begins with; save its description to a file."""
    if not file.exists():
        solver.measure(asked, tell=print)
        write_json(file, solver.rule.measured())
        print(solver.rule.origin(), flush=True)
    found = read(file)["chosen"]
    assert found is not None, "too few steps were drafted to measure a threshold"
    return float(found["temperature"]), float(found["threshold"])


def measure(a: Namespace, draft: str) -> Path:
    """Write the missing lines of one draft, and return their file; ``draft=""`` is the target alone."""
    file = a.out / f"{Path(draft).name or 'alone'}.jsonl"
    options = [f"benchmark.seed={a.seed}", f"concurrency={a.at_once}", "accept=logprob", "split=paragraph"]  # fmt: skip
    options += [f"accept.score_temperature={a.score_temperature}", f"model.path={a.target}"]
    options += [f"temperature={a.temperature}", "adaptive=false"]
    options += ["draft=lm", f"draft.model.path={draft}"] if draft else ["draft=none"]
    cut_torn_line(file)
    known = {key_of(line): line for line in lines_of(file)}
    with Solver(build(compose(options))) as solver, LineFile(file) as out:
        asked = list(islice(solver.config.benchmark.problems(), a.problems))
        settings = [(RAW, threshold) for threshold in a.thresholds]
        if draft:
            kept = f".measured-{a.score_temperature}.json"
            settings.append(measured(solver, asked, file.with_suffix(kept)))

        def write(lines: Iterable[Line]) -> None:
            for line in lines:
                known[key_of(line)] = line
                out.append(line)

        for start in range(0, len(asked), 2 * a.at_once):
            group = asked[start : start + 2 * a.at_once]
            if not draft:
                left = [p for p in group if (p.id, RAW, None) not in known]
                if left:
                    write(line_of(solver, done, None) for done in solver.solve(left, "plain"))
                continue
            before: Setting | None = None
            for at, threshold in sorted(settings):
                left = []
                for problem in group:
                    if (problem.id, at, threshold) in known:
                        continue
                    line = (
                        known.get((problem.id, at, before[1]))
                        if before and before[0] == at
                        else None
                    )
                    if line is not None and same(line, threshold):
                        write([line | {"threshold": threshold, "copied": True}])
                    else:
                        left.append(problem)
                solver.rule = LogProb(threshold=threshold, score_temperature=at)
                if left:
                    solved = solver.solve(left, "speculative")
                    write(line_of(solver, done, (at, threshold)) for done in solved)
                before = at, threshold
    return file


def lines_of(file: Path) -> list[Line]:
    return [line for raw in whole_lines(file) if (line := parse(raw))]


def shown(lines: Sequence[Line], alone: Mapping[str, bool]) -> list[list[str]]:
    """Return a row of the table for each threshold, over the problems that it was tried on."""
    rows = []
    for at, threshold in sorted({key_of(line)[1:] for line in lines}):
        own = [line for line in lines if key_of(line)[1:] == (at, threshold)]
        right = [bool(line["correct"]) for line in own]
        low, high = wilson(sum(right), len(own)) or (0.0, 1.0)
        change, (least, most) = paired_by_problem(
            [[(alone[line["id"]], bool(line["correct"]))] for line in own]
        )
        drafted, kept, tokens = (sum(x[k] for x in own) for k in ("drafted", "kept", "tokens"))
        rows.append(
            [
                f"{threshold:.2f} at {at:g} ({len(own)})",
                f"{sum(right) / len(own):.3f} [{low:.3f}, {high:.3f}]",
                f"{100 * change:+.1f} [{100 * least:+.1f}, {100 * most:+.1f}]",
                f"{kept / drafted:.1%}",
                f"{sum(x['by_target'] for x in own) / tokens:.0%}",
                f"{tokens / sum(x['passes']['target'] for x in own):.2f}",
            ]
        )
    return rows


def main() -> None:
    a = parser(
        __doc__, target="embedded/tiny-target", drafts=["embedded/tiny-draft"], out=Path, problems=500,
        seed=20261214, temperature=0.6, at_once=50, thresholds=THRESHOLDS,
        score_temperature="auto",
    ).parse_args()  # fmt: skip
    a.out.mkdir(parents=True, exist_ok=True)
    alone = {line["id"]: bool(line["correct"]) for line in lines_of(measure(a, ""))}
    print(
        f"{a.target} alone, T = {a.temperature:g}: {sum(alone.values())} of {len(alone)}",
        flush=True,
    )
    for draft in a.drafts:
        rows = shown(lines_of(measure(a, draft)), alone)
        print(f"\n{draft}\n\n" + "\n".join(markdown(HEADINGS, rows)), flush=True)


if __name__ == "__main__":
    main()
