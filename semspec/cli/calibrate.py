"""``python -m semspec.calibrate``: measure the constants of ARC-Decode's bound, from texts to artifact.

The target (and with ``draft=`` the draft) reads its own texts, and its next step after its likeliest
token is compared with that after another one (algorithm 1). Every stage resumes after a kill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from semspec.artifacts import base, binding
from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.calibration.arc import Quantiles, Setting, fit_setting, hashed, vacuous
from semspec.cli.command import run_command
from semspec.decoding.whitening import Whitened, deviation
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.models.location import ModelFacts, canonical_name
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console
from semspec.training.calibration.arc_card import card, plots
from semspec.training.calibration.next_step import Measure
from semspec.training.calibration.pairs import Spots, as_columns, measure_chains
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import Pair, make_chains, provenance_of
from semspec.training.probes.pipeline import probe_facts
from semspec.training.probes.settings import ProbeConfig
from semspec.training.resume import at_work, begin

HELP = """\
usage: python -m semspec.calibrate model=NAME [draft=NAME] [out=FOLDER] [...]

  model=           the target: a preset, or model.path=FOLDER_OR_REPO
  draft=           also measure tokens that this draft proposes (accept=arc_certified needs them)
  temperatures=1.0 temperatures to calibrate at: 1.0,0.6,0.3 makes one artifact for three
  problems=200     texts; source=, data=, domains=, max_new_tokens=, batch= as in semspec.train_probe
                   (source=hub data=... chains=answers lets the model answer a data set's questions)
  positions=8      places of each text
  levels=6         tokens that a draft has: places lie 0 to levels - 1 below its root
  top=20           K: candidates are among the K likeliest, divergences on the union of two top-K sets
  smoothing=1e-4   mu on that union
  delta=0.05       share that may lie beyond a quantile; sequence=T divides it among T positions
  alpha=1          safety factor of the logit side
  correction=clopper_pearson, wilson or none: for the quantile of a finite sample; confidence=0.95
  fit=uniform      pairs that the constants are fitted to: uniform (the paper's), or drafted
  seed=0           of the problems; folder=runs/arc-MODEL resumes after a kill; out=FOLDER/arc
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of this command alone; all others are options of semspec.cli.train_probe."""

    temperatures: tuple[float, ...] = (1.0,)
    fit: str = "uniform"
    out: str = ""
    quantiles: Quantiles = field(default_factory=Quantiles)
    spots: Spots = field(default_factory=Spots)
    measure: Measure = field(default_factory=Measure)


def split_options(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Split into this command's options and the remaining arguments; raises UserError for bad values."""
    parts: dict[str, Any] = {"quantiles": Quantiles, "spots": Spots, "measure": Measure}
    names = {
        **{f.name: ("quantiles", f.type) for f in fields(Quantiles)},
        **dict.fromkeys(("positions", "levels"), ("spots", "int")),
        "top": ("measure", "int"),
        "smoothing": ("measure", "float"),
    }
    given: dict[str, dict[str, Any]] = {part: {} for part in parts}
    own: dict[str, Any] = {}
    passed = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        try:
            if key == "temperatures":
                own[key] = tuple(float(x) for x in value.strip("[]").split(","))
            elif key in ("fit", "out"):
                own[key] = value
            elif key in names:
                part, kind = names[key]
                given[part][key] = {"int": int, "float": float, "str": str}[str(kind)](value)
            else:
                passed.append(argument)
        except ValueError:
            raise UserError(f"{argument}: give a number (see --help)") from None
    options = Options(**own, **{part: cls(**given[part]) for part, cls in parts.items()})
    _check(options, [a.partition("=")[0] for a in passed])
    return options, passed


def _check(options: Options, passed: Sequence[str]) -> None:
    if "temperature" in passed:
        raise UserError(
            "temperature=: here it is temperatures=, one or several: temperatures=1,0.6"
        )
    if not options.temperatures or min(options.temperatures) < 1e-3:
        raise UserError("temperatures are above 0.001: greedy decoding leaves nothing to calibrate")
    if len(set(options.temperatures)) < len(options.temperatures):
        raise UserError("temperatures=: one of them is there twice")
    if options.fit not in ("uniform", "drafted"):
        raise UserError(f"fit={options.fit}: give uniform or drafted")
    if options.spots.positions < 1 or options.spots.levels < 1 or options.measure.top < 2:
        raise UserError("positions and levels are at least 1, top at least 2")
    if not options.measure.smoothing > 0:
        raise UserError("smoothing is above 0, such as 1e-4")


def calibrate(arguments: Sequence[str], steps: Steps) -> tuple[ArcCalibration, Path]:
    """Run all stages; return the calibration and its folder."""
    options, passed = split_options(arguments)
    given = {argument.partition("=")[0] for argument in passed}
    configs = []
    for temperature in options.temperatures:
        more = [f"temperature={temperature}"] + ["problems=200"] * ("problems" not in given)
        configs.append(build([*passed, *more]))
    first = configs[0]
    if options.fit == "drafted" and first.draft.plain:
        raise UserError("fit=drafted needs a draft model: add draft=tiny, or another one")
    spots = replace(options.spots, drafted=not first.draft.plain, seed=first.seed)
    options = replace(options, spots=spots)
    model = first.model.path.rstrip("/").rpartition("/")[2]
    folder = Path(first.folder or f"runs/arc-{model}")
    out = Path(options.out) if options.out else folder / "arc"
    with at_work(folder):
        calibration = _all(options, configs, folder, out.name, steps)
        calibration.save(out)
    return calibration, out


def _all(
    options: Options, configs: Sequence[ProbeConfig], folder: Path, name: str, steps: Steps
) -> ArcCalibration:
    facts = probe_facts(configs[0])
    known: Whitened | None = None
    sigma = torch.empty(0)
    evidence, settings, prompts = [], [], dict[str, None]()
    for number, config in enumerate(configs):
        own = folder / f"T-{config.temperature:g}"
        own.mkdir(exist_ok=True)
        begin(own, config, facts, spots=options.spots, measure=options.measure)
        label = f"T = {config.temperature:g}: "
        pair = Pair(config)
        try:
            if known is None:
                sigma = _sigma(pair)
                known = Whitened(sigma)
            with steps.stage(label + "texts", config.problems) as stage:
                chains = make_chains(config, pair, own, stage.to)
            measure = replace(options.measure, temperature=config.temperature)
            with steps.stage(label + "pairs", len(chains)) as stage:
                path = own / "pairs.jsonl"
                lines = measure_chains(pair, chains, options.spots, measure, known, path, stage.to)
        finally:
            pair.close()
        pairs = as_columns(lines, number)
        settings.append(fit_setting(pairs, config.temperature, options.quantiles, options.fit))
        evidence.append(pairs)
        prompts |= dict.fromkeys(hashed(chain.prompt) for chain in chains)
    data = _config(options, configs, facts, settings, list(prompts))
    tensors = {"sigma": sigma.cpu(), "evidence": torch.cat(evidence)}
    texts = {"README.md": card(name, data)} | plots(evidence, settings)
    return ArcCalibration(data, tensors, texts, name)


def _sigma(pair: Pair) -> torch.Tensor:
    """Return the deviation of every dimension of the input embeddings (line 1 of the algorithm)."""
    context = pair.context("", [0])
    kit = pair.solver.kit("sigma", "", "plain")

    def plans() -> Any:
        yield context, deviation(context, kit, pair.engine.vocabulary)

    (done,) = pair.solver.driver.run(plans())
    sigma: torch.Tensor = done.value
    return sigma


def _config(
    options: Options,
    configs: Sequence[ProbeConfig],
    model: ModelFacts,
    settings: Sequence[Setting],
    prompts: Sequence[str],
) -> dict[str, Any]:
    config = configs[0]
    return {
        "kind": ArcCalibration.kind,
        "version": ArcCalibration.version,
        "model": binding.of(model),
        "temperature": {
            "sampled": max(options.temperatures),
            "lowest": min(options.temperatures),
            "highest": max(options.temperatures),
        },
        "settings": [setting.to_json() for setting in settings],
        "prompts": list(prompts),
        "data": provenance_of(config)
        | {"seed": config.seed, "top_k": config.top_k, "top_p": config.top_p}
        | {"draft": None if config.draft.plain else canonical_name(config.draft.model)}
        | {name: getattr(options.spots, name) for name in ("positions", "levels")},
        "training": asdict(options.quantiles)
        | {"fit": options.fit, "top": options.measure.top, "smoothing": options.measure.smoothing},
        "provenance": base.made_with(),
    }


def show(calibration: ArcCalibration, console: Screen) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("T", "c_s'", "alpha*kappa", "tau", "pairs", "JS mean", "JS <= U [95 %]"):
        table.add_column(heading, justify="right")
    for setting in calibration.settings:
        by = setting.constants
        for kind in ("uniform", "drafted"):
            figures = setting.figures.get(kind)
            if figures:
                low, high = figures["coverage_interval"]
                table.add_row(
                    f"{setting.temperature:g}",
                    *(f"{x:.4g}" for x in (by.c_s, by.alpha_kappa, by.tau)),
                    f"{figures['pairs']:,} {kind}",
                    f"{figures['js_mean']:.4f}",
                    f"{figures['coverage']:.3f} [{low:.3f}, {high:.3f}]",
                )
    console.print(table)
    for setting in calibration.settings:
        warning = vacuous(float(setting.constants.tau))
        if warning:
            console.say(f"T = {setting.temperature:g}: {warning}")


def run(arguments: Sequence[str]) -> None:
    console = open_console()
    calibration, out = calibrate(arguments, Steps(console))
    show(calibration, console)
    console.say(f"calibration: {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
