"""Watch a stopper: it scores every end of a step but never stops; a trial answer is forced there and graded.

Each finished problem is a line of ``trials.jsonl``, so a killed command resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semspec.calibration.stopping import Trial, Watched
from semspec.decoding.stopping import closing_text, kept_back
from semspec.models.text import opening
from semspec.protocols import BenchmarkProblem, Closing, Kit, Plan, Stopper, StopSession
from semspec.solver import Solution, Solver
from semspec.storage import files
from semspec.types import Answer, Context, Generate, Opinion, Query

FILE = "trials.jsonl"


@dataclass
class Watching:
    """Stands in for a stopper and keeps the trials by prompt."""

    stop: Stopper
    solver: Solver
    tried: dict[str, list[tuple[int, float, str]]] = field(default_factory=dict)
    plain = False
    audits = False

    @property
    def reserve(self) -> int:
        return max(self.stop.reserve, kept_back(self.closing, self.solver.config.max_new_tokens))

    @property
    def closing(self) -> Closing:
        return self.stop.closing

    def asked_risk(self) -> float | None:
        return None

    def open(self, kit: Kit) -> StopSession:
        return _Session(self, self.stop.open(kit), kit)


class _Session:
    def __init__(self, watching: Watching, inner: StopSession, kit: Kit) -> None:
        self.watching, self.inner, self.kit = watching, inner, kit
        self.closing = kit.encode(closing_text(watching.closing, at_end=True))
        self.tried = watching.tried[kit.prompt] = []

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        opinion: Opinion = yield from self.inner.consider(context, thought)
        if opinion.score is not None:
            solver = self.watching.solver
            most = kept_back(self.watching.closing, solver.config.max_new_tokens)
            reply: Answer = yield Query(
                "target",
                context,
                self.kit.sampling,
                self.kit.rng,
                tokens=self.closing,
                generate=Generate(most),
            )
            output = [*context.output, *self.closing, *reply.tokens]
            text = opening(self.kit.prompt) + solver.said(output)
            self.tried.append((thought, opinion.score, text))
        return Opinion(False, opinion.score)


def watched(
    solver: Solver,
    problems: Sequence[BenchmarkProblem],
    folder: Path,
    tell: Callable[[int], object],
    keep: Callable[[str, str], object] = lambda name, prompt: None,
) -> list[Watched]:
    """Solve problems to their natural ends with trial answers on the way; read those of an earlier start.

    Problems that cannot be graded are left out. ``keep`` is called with each problem's id and prompt before it counts
    as done.
    """
    file = folder / FILE
    files.cut_torn_line(file)
    lines = tried(folder)
    own, watching = solver.stop, Watching(solver.stop, solver)
    solver.stop = watching  # type: ignore[assignment]
    try:
        with files.LineFile(file) as written:
            left = [p for p in problems if p.id not in lines]
            for line in _made(solver, watching, left, keep):
                written.append(line)
                written.sync()
                lines[line["id"]] = line
                tell(len(lines))
    finally:
        solver.stop = own
    return [_read(lines[p.id]) for p in problems if lines[p.id]["right"] is not None]


def tried(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the line of each finished problem, by id."""
    raws = files.whole_lines(folder / FILE)
    return {line["id"]: line for raw in raws if (line := files.parse(raw))}


def _made(
    solver: Solver,
    watching: Watching,
    problems: Sequence[BenchmarkProblem],
    keep: Callable[[str, str], object],
) -> Iterator[dict[str, Any]]:
    size = solver.config.concurrency
    for start in range(0, len(problems), size):
        done: list[Solution] = list(solver.solve(problems[start : start + size], "speculative"))
        for one in done:
            grade = solver.config.benchmark.grade
            prompt = solver.text.prompt(one.problem.question, one.problem.system)[0]
            trials = [
                [thought, score, bool(grade(one.problem, text).correct)]
                for thought, score, text in watching.tried.pop(prompt)
            ]
            right = grade(one.problem, one.text).correct
            keep(one.problem.id, prompt)
            yield {
                "id": one.problem.id,
                "right": right,
                "thought": solver.thought(one),
                "trials": trials,
            }


def _read(line: Mapping[str, Any]) -> Watched:
    return Watched([Trial(*trial) for trial in line["trials"]], line["right"], line["thought"])
