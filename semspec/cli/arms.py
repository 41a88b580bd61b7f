"""Run jobs whose arms (one per row of an experiment) take turns on the same problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semspec.errors import UserError, describe_error
from semspec.in_turn import Arm
from semspec.jobs.job import Job, resolve, say
from semspec.report.terminal import Screen
from semspec.results.records import now
from semspec.runner import execute_arms
from semspec.solver import Solution, Solver
from semspec.storage.screen import complain
from semspec.training.calibration.audit import audited


def do_arms(job: Job, root: Path, console: Screen) -> None:
    """Run the arms of a job in turn; leave out an arm that cannot run here, and record why."""
    made = [Arm(*resolve(arm), root / arm.name, arm.about) for arm in job.arms]
    left_out: dict[Path, UserError] = {}
    aside = _divergences if "divergence" in job.overrides else None
    started = now()
    execute_arms(made, console, grow=True, aside=aside, left_out=left_out)
    for arm in job.arms:
        if error := left_out.get(root / arm.name):
            complain(f"{arm.name}: left out: {error}")
            say(arm, root, "failed", describe_error(error), started, left_out=True)


def _divergences(solver: Solver, solved: Solution) -> dict[str, Any]:
    """Measure how far kept tokens that are not the target's likeliest one move its next step."""
    if solver.drafter.plain or solver.rule.cuts != "tokens":
        return {}
    (kept,) = audited(solver, [solved])
    other = [a for a in kept if not a.likeliest]
    covered = [a.js <= a.u for a in other if a.u is not None]
    js, within = [round(a.js, 5) for a in other], sum(covered) if covered else None
    return {"kept_tokens": len(kept), "js": js, "covered": within}
