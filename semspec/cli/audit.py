"""``python -m semspec.audit``: measure how far accepted tokens really moved the target's next step.

Solves problems as ``semspec.run`` does, then measures for every accepted draft token how much the next step
diverges, and how often the rule's bound covers that divergence (ARC-Decode, table A.3.2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from semspec.calibration.arc import vacuous
from semspec.choices.presets import with_recommended
from semspec.choices.resumed import repeatable
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.cli.command import run_command
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, read_known
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, interval, open_console, table_of
from semspec.results.attempts import attempted
from semspec.rules.arc import Calibrated
from semspec.solver import Solver
from semspec.storage.files import write_json
from semspec.training.calibration.audit import Accepted, audited, summary
from semspec.training.calibration.next_step import Measure


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's own options; every other one is an option of semspec.run."""

    # fmt: off
    top: int = option(20, "K: divergences are measured on the union of both top-K sets", least=2)
    smoothing: float = option(
        1e-4, "mu: smoothing of both distributions on that union", least=sys.float_info.min, give="a number above 0, such as 1e-4")
    out: str = option("", "write the figures to this JSON file")
    # fmt: on


HELP = f"""\
usage: python -m semspec.audit accept=arc theta=0.7 split=token draft_length=5 [problems=32] [...]

Takes the options of semspec.run, and its own:

{described(Options)}

Any rule that keeps tokens can be audited; coverage is shown for accept=arc and accept=arc_certified only.
"""


def audit(arguments: Sequence[str], steps: Steps) -> dict[str, Any]:
    """Solve, measure and return the figures; raise UserError for a rule that does not accept tokens."""
    own, passed = read_known(Options, arguments, "semspec.audit")
    passed = expand_shorthands(repeatable(passed), auto=False)
    check_arguments(passed, sweep=False, command="semspec.audit", own=names(Options))
    config = build(compose(passed))
    if config.accept.cuts != "tokens" or config.draft.plain:
        raise UserError(
            "an audit needs drafted tokens: choose a draft=, and a rule that keeps tokens,"
            " such as accept=arc or accept=lossless with split=token"
        )
    measure = Measure(own.top, own.smoothing, config.temperature)
    with Solver(config) as solver:
        problems = list(islice(config.benchmark.problems(), config.problems))
        asked = attempted(problems, config.attempts)
        with steps.stage("solving", len(asked)) as stage:
            solved = []
            for done in solver.solve(asked, "speculative"):
                solved.append(done)
                stage.by(1)
        kept: list[Accepted] = []
        with steps.stage("measuring", len(solved)) as stage:
            for found in audited(solver, solved, measure):
                kept += found
                stage.by(1)
        figures: dict[str, Any] = {"problems": len(problems)}
        if isinstance(rule := solver.rule, Calibrated):
            figures["kept"] = summary(kept, rule.least_score)
            figures["tau"] = float(rule.known.setting.constants.tau)
            figures["warning"] = vacuous(figures["tau"])
        else:
            figures["kept"] = summary(kept)
    if own.out:
        write_json(Path(own.out), figures | {"arguments": list(arguments)})
    return figures


def show(figures: dict[str, Any], console: Screen) -> None:
    table = table_of("drafted tokens", "tokens", "mean JS", "99th", "JS <= U [95 %, Wilson]")
    for name, f in figures["kept"].items():
        share = "-"
        if f["coverage"] is not None:
            share = f"{f['coverage']:.3f} {interval(f['coverage_interval'], 3)}"
        js = ("-" if f[k] is None else f"{f[k]:.4f}" for k in ("js_mean", "js_p99"))
        table.add_row(name, f"{f['tokens']:,}", *js, share)
    console.print(table)
    if figures.get("warning"):
        console.say(figures["warning"])


def run(arguments: Sequence[str]) -> None:
    console = open_console()
    whole, taken = with_recommended(arguments)
    if taken:
        console.say(taken, "dim")
    show(audit(whole, Steps(console)), console)


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
