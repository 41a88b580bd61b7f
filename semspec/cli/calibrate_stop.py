"""``python -m semspec.calibrate_stop``: collect trial answers along the thinking, to certify early stopping.

It solves problems with the run's options (rule, drafter, sampling) to their natural ends. After every step it notes the
stopper's score, forces an answer and grades it. From these trials a run that asks for a risk certifies its
threshold (``semspec.calibration.stopping``). ``measure=FOLDER`` tests such thresholds on fresh problems;
``train=true`` trains a head for ``stop=probe`` on the trials.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from semspec import config as configuration
from semspec import registry
from semspec.artifacts import base
from semspec.artifacts.stop_probe import SPANS
from semspec.artifacts.stopping import StopCalibration
from semspec.calibration.stopping import Watched, certifiable, certify, described_stop, outcome
from semspec.choices.presets import with_recommended
from semspec.choices.settle import expand_shorthands
from semspec.cli.arguments import check_arguments
from semspec.cli.command import run_command
from semspec.config import RunConfig, drawn_by
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, read_known
from semspec.jobs.stages import hold, keep_options, stored_options
from semspec.report.progress import Steps
from semspec.report.terminal import interval, open_console, table_of
from semspec.results.metrics import wilson
from semspec.solver import Solver
from semspec.stops.probe import Gathering, Probed
from semspec.training.stopping.head import Asked, keeper, made, seen
from semspec.training.stopping.watch import watched

COMMAND = "semspec.calibrate_stop"
RISKS = (0.02, 0.05, 0.1)
PROBLEMS, SEED = 200, 1  # unless given; runs have seed=0


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command's own options; every other one is an option of semspec.run."""

    # fmt: off
    folder: str = option("", "the work; runs take FOLDER/calibration as stop.calibration=", shown="runs/stop-NAME-SEED")
    measure: str = option("", "calibrate nothing; on fresh problems, measure the risk that this calibration certifies")
    hopeless: float = option(0.0, "with measure=: the share of the risk for giving up hopeless problems, like a run's stop.hopeless=", least=0, most=0.99)
    train: bool = option(False, "calibrate nothing; train a head for stop=probe: FOLDER/probe")
    span: str = option("closing", "with train=true: pool the states over the step, or over the beginning of an answer after it (closing)", choices=SPANS)
    pooling: str = option("mean,last", "with train=true: how to pool them: mean, max, last")
    layers: tuple[int, ...] = option((), "with train=true: layers to read, 0 (embeddings) to the last, -1", shown="all")
    hidden: tuple[int, ...] = option((64, 16), "sizes of the head's two hidden layers", least=1, shown="64,16")
    train_seed: int = option(0, "seed of the training: division of the problems, weights, batches")
    # fmt: on


HELP = f"""\
usage: python -m semspec.calibrate_stop stop=eat [folder=FOLDER] [problems=200] [...]
       python -m semspec.calibrate_stop stop=probe train=true [folder=FOLDER] [layers=12,24] [...]

{described(Options)}
  problems={PROBLEMS} seed={SEED} stop=eat accept=...   and every other option of semspec.run

Calibrate with the run's rule, drafter and sampling, on problems like the run's but not the same: another seed or part of
the benchmark (benchmark.seed=...). Train a head on a third set of problems, neither the calibration's nor the run's.
A killed command resumes in the same folder=.
"""


def read(arguments: Sequence[str]) -> tuple[RunConfig, Options]:
    """Return the run's configuration, and the options of this command."""
    own, rest = read_known(Options, arguments, COMMAND)
    configuration.register_configs()
    given = {argument.partition("=")[0] for argument in rest}
    more = {"problems": PROBLEMS, "seed": SEED, "adaptive": "false"}
    rest = [*rest, *(f"{name}={value}" for name, value in more.items() if name not in given)]
    overrides = expand_shorthands(with_recommended(rest)[0])
    check_arguments(overrides, sweep=False, command=COMMAND, own=names(Options))
    config = configuration.build(configuration.compose(overrides))
    if config.attempts > 1:
        raise UserError(
            "attempts= is of semspec.run: a guarantee takes independent problems; raise problems="
        )
    return config, own


def how(config: RunConfig) -> dict[str, Any]:
    """Describe how solutions are written: a guarantee holds only for solutions written the same way."""
    benchmark = config.benchmark
    about = {f.name: getattr(benchmark, f.name) for f in fields(benchmark)}
    return {
        **asdict(config.sampling),
        "split": config.split,
        "rule": registry.name_of(config.accept),
        "draft": drawn_by(config.draft),
        "max_new_tokens": config.max_new_tokens,
        "seed": config.seed,
        "benchmark": {"name": registry.name_of(benchmark), "options": about},
    }


def collect(
    config: RunConfig, folder: Path, asked: Asked | None = None
) -> tuple[list[Watched], Solver]:
    """Solve and watch all problems; return the trials and the solver, already closed.

    ``asked``: also keep the states that a head reads.
    """
    steps = Steps(open_console())
    problems = list(islice(config.benchmark.problems(), config.problems))
    with hold(folder):
        options = {"stop": described_stop(config.stop), **how(config)}
        options |= {"states": asdict(asked)} if asked else {}
        keep_options(folder, options, stored_options(folder, ["stop"]), {}, ())
        gathering = Gathering(asked.features, asked.span) if asked else None
        if gathering is not None:
            config = replace(config, stop=config.stop.bound(gathers=gathering))
        with Solver(config) as solver, steps.stage("problems", len(problems)) as stage:
            keeps = [keeper(folder, problems, gathering)] if gathering is not None else []
            found = watched(solver, problems, folder, stage.to, *keeps)
    return found, solver


def train(config: RunConfig, own: Options, folder: Path) -> None:
    """Train a head on the trials of a configuration, and save it."""
    if not isinstance(config.stop, Probed):
        raise UserError("train=true trains the head of stop=probe: give stop=probe")
    if config.stop.probe or own.measure:
        raise UserError("train=true makes a head: leave stop.probe= and measure= out")
    asked = Asked.of(own.span, own.pooling, own.layers, config)
    _, solver = collect(config, folder, asked)
    console = open_console()
    with Steps(console).stage("training", None) as stage:
        head = made(
            folder, config, how(config), asked, own.hidden, own.train_seed, solver.facts, stage.by
        )
    head.save(folder / "probe")
    console.say(f"{seen(head.config)}: {folder / 'probe'}")


def thresholds(problems: Sequence[Watched]) -> dict[str, float | None]:
    """Return each risk's certified threshold and the thinking it saves (None if there is none), for the card."""
    found: dict[str, float | None] = {}
    for asked in RISKS:
        found |= {f"threshold_{asked:g}": None, f"saved_{asked:g}": None}
        with contextlib.suppress(UserError):  # too few problems for so small a risk
            certified = certify(problems, risk=asked)
            found[f"threshold_{asked:g}"] = certified.threshold
            found[f"saved_{asked:g}"] = certified.saved
    return found


def measured(
    given: StopCalibration, fresh: Sequence[Watched], hopeless: float = 0.0
) -> list[tuple[float, float, int, float]]:
    """Return for each risk: the risk, its threshold, how many fresh problems it harms, the share of thinking saved."""
    rows = []
    budget = given.budget if hopeless else 0
    for asked in RISKS:
        with contextlib.suppress(UserError):
            found = certify(given.problems, risk=asked, hopeless=hopeless, budget=budget)
            rows.append((asked, found.threshold, *outcome(fresh, found.threshold, found.floor)))
    return rows


def run(arguments: Sequence[str]) -> None:
    config, own = read(arguments)
    name = registry.name_of(config.stop)
    if not certifiable(config.stop):
        raise UserError(f"stop={name} has no score to certify: calibrate stop=eat, answer or probe")
    if config.stop.asked_risk() is not None:
        raise UserError(
            "stop.risk= is for runs: what is calibrated here serves any risk; leave it out"
        )
    if own.hopeless and not own.measure:
        raise UserError(
            "hopeless= is of measure=; what is calibrated serves any share: leave it out"
        )
    given = StopCalibration.load(own.measure) if own.measure else None
    kind = "measured" if given else "head" if own.train else "stop"
    folder = Path(own.folder or f"runs/{kind}-{name}-{config.seed}")
    if own.train:
        train(config, own, folder)
        return
    problems, solver = collect(config, folder)
    console = open_console()
    if given is not None:
        table = table_of("asked risk", "threshold", "measured [95 %]", "thinking saved", words=0)
        for asked, threshold, harmed, saved in measured(given, problems, own.hopeless):
            between = wilson(harmed, len(problems)) or (0.0, 1.0)
            share = f"{harmed / len(problems):.3f} {interval(between, 3)}"
            table.add_row(f"{asked:g}", f"{threshold:.4f}", share, f"{saved:.0%}")
        console.print(table)
        return
    described_as = described_stop(config.stop), how(config), thresholds(problems)
    made = StopCalibration.of(problems, solver.facts, *described_as)
    made.config["provenance"] = base.made_with()
    made.save(folder / "calibration")
    console.say(f"{len(problems)} problems: {folder / 'calibration'}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
