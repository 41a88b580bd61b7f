"""``python -m semspec.calibrate``: measure the constants of ARC-Decode's bound, from texts to artifact.

The target (and with ``draft=`` the draft) reads texts that the target wrote. Its next-step distribution after
its likeliest token is compared with that after another token (algorithm 1). Every stage resumes after a kill.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from semspec.artifacts import base, binding
from semspec.artifacts.arc_calibration import ArcCalibration
from semspec.calibration.arc import Quantiles, Setting, fit_setting, hashed, vacuous
from semspec.cli.command import run_command
from semspec.decoding.whitening import Whitened, deviation
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, pairs, read_known
from semspec.jobs.stages import hold
from semspec.models.location import ModelFacts, canonical_name
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, interval, open_console, table_of
from semspec.training.calibration.arc_card import card, plots
from semspec.training.calibration.next_step import Measure
from semspec.training.calibration.pairs import Spots, as_columns, measure_chains
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import Pair, make_chains, provenance_of
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.stages import keep_options, probe_facts

COMMAND = "semspec.calibrate"
SPOTS, MEASURE, QUANTILES = Spots(), Measure(), Quantiles()  # the defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command's own options; every other one is an option of semspec.train_probe."""

    # fmt: off
    temperatures: tuple[float, ...] = option(
        (1.0,), "temperatures to calibrate at: 1.0,0.6,0.3 makes one artifact for all three", shown="1.0")
    lengths: tuple[int, ...] = option(
        (), "fewest and most tokens of a data set's prompts: 32,256 in the paper (source=hub or jsonl)", least=1,
        shown="all")
    positions: int = option(SPOTS.positions, "places per text", least=1)
    levels: int = option(SPOTS.levels, "tokens of a draft: places lie 0 to levels - 1 tokens below its root", least=1)
    top: int = option(
        MEASURE.top, "K: candidates are among the K likeliest, divergences on the union of two top-K sets", least=2)
    smoothing: float = option(
        MEASURE.smoothing, "mu: smoothing on that union", least=sys.float_info.min, give="a number above 0, such as 1e-4")
    delta: float = option(QUANTILES.delta, "share that may lie beyond a quantile")
    sequence: int = option(QUANTILES.sequence, "positions that share delta (0: each has its own)")
    alpha: float = option(QUANTILES.alpha, "safety factor of the bound from logits")
    correction: str = option(QUANTILES.correction, "for the quantile of a finite sample: clopper_pearson, wilson or none")
    confidence: float = option(QUANTILES.confidence, "confidence of that correction")
    fit: str = option(
        "uniform", "pairs that the constants are fitted to: uniform (the paper's), or drafted", choices=("uniform", "drafted"))
    out: str = option("", "the calibration's folder", shown="FOLDER/arc")
    # fmt: on

    @property
    def quantiles(self) -> Quantiles:
        return Quantiles(self.delta, self.sequence, self.alpha, self.correction, self.confidence)

    @property
    def measure(self) -> Measure:
        return Measure(self.top, self.smoothing)

    def spots(self, config: ProbeConfig) -> Spots:
        return Spots(self.positions, self.levels, not config.draft.plain, config.seed)

    def fitting(self, pair: Pair) -> Callable[[str], bool]:
        """Return a test for prompts of the asked length, in the target's tokens and without its template."""
        fewest, most = self.lengths
        return lambda text: fewest <= len(pair.text.encode(text)) <= most


SHARED = {  # useful options of semspec.train_probe
    "model=": "the target: a preset, or model.path=FOLDER_OR_REPO",
    "draft=": "also measure tokens that this draft proposes (accept=arc_certified needs them)",
    "problems=200": "number of texts; source=, data=, domains=, max_new_tokens=, batch= as in semspec.train_probe"
    " (source=hub data=... chains=answers lets the model answer a data set's questions)",
    "seed=0": "seed of the problems",
    "folder=": "the work; after a kill the same folder resumes (runs/arc-MODEL)",
}
HELP = f"""\
usage: python -m semspec.calibrate model=NAME [draft=NAME] [out=FOLDER] [...]

{described(Options, SHARED)}
"""


def split_options(arguments: Sequence[str]) -> tuple[Options, dict[str, str]]:
    """Return the command's own options, checked, and those of semspec.train_probe."""
    options, rest = read_known(Options, arguments, COMMAND)
    passed = pairs(rest)
    _ = options.quantiles  # checks itself
    if "temperature" in passed:
        way = "here it is temperatures=, one or several: temperatures=1,0.6"
        raise UserError(f"temperature=: {way}")
    if not options.temperatures or min(options.temperatures) < 1e-3:
        raise UserError("temperatures are above 0.001: greedy decoding leaves nothing to calibrate")
    if options.lengths and (len(options.lengths) != 2 or options.lengths[0] > options.lengths[1]):
        raise UserError("lengths= is the fewest and the most tokens of a prompt: lengths=32,256")
    if options.lengths and passed.get("source", "embedded") == "embedded":
        raise UserError(
            "lengths= chooses among a data set's prompts, and the embedded problems are made as they are:"
            " leave it out, or add source=hub data=REPO chains=answers"
        )
    if len(set(options.temperatures)) < len(options.temperatures):
        raise UserError("temperatures=: one of them is there twice")
    return options, passed


def composed(arguments: Sequence[str]) -> tuple[Options, list[ProbeConfig]]:
    """Return the command's own options, and a configuration for each temperature."""
    options, passed = split_options(arguments)
    configs = []
    for temperature in options.temperatures:
        given = {"problems": "200", **passed, "temperature": f"{temperature}"}
        configs.append(build([f"{k}={v}" for k, v in given.items()], COMMAND, names(Options)))
    return options, configs


def calibrate(arguments: Sequence[str], steps: Steps) -> tuple[ArcCalibration, Path]:
    """Run all stages; return the artifact and its folder.

    Raises UserError if the folder was begun with other options.
    """
    options, configs = composed(arguments)
    first = configs[0]
    if options.fit == "drafted" and first.draft.plain:
        raise UserError("fit=drafted needs a draft model: add draft=tiny, or another one")
    model = first.model.path.rstrip("/").rpartition("/")[2]
    folder = Path(first.folder or f"runs/arc-{model}")
    out = Path(options.out) if options.out else folder / "arc"
    with hold(folder):
        made = _all(options, configs, folder, out.name, steps)
        made.save(out)
    return made, out


def _all(
    options: Options, configs: Sequence[ProbeConfig], folder: Path, name: str, steps: Steps
) -> ArcCalibration:
    facts = probe_facts(configs[0])
    spots, known = options.spots(configs[0]), None
    limits = {"lengths": list(options.lengths)} if options.lengths else {}
    sigma = torch.empty(0)
    evidence, settings, prompts = [], [], dict[str, None]()
    for number, config in enumerate(configs):
        own = folder / f"T-{config.temperature:g}"
        own.mkdir(exist_ok=True)
        keep_options(own, config, facts, spots=spots, measure=options.measure, **limits)
        label = f"T = {config.temperature:g}: "
        pair = Pair(config)
        try:
            if known is None:
                sigma = _sigma(pair)
                known = Whitened(sigma)
            with steps.stage(label + "texts", config.problems) as stage:
                fits = options.fitting(pair) if options.lengths else None
                chains = make_chains(config, pair, own, stage.to, fits=fits)
            measure = replace(options.measure, temperature=config.temperature)
            with steps.stage(label + "pairs", len(chains)) as stage:
                path = own / "pairs.jsonl"
                lines = measure_chains(pair, chains, spots, measure, known, path, stage.to)
        finally:
            pair.close()
        pairs = as_columns(lines, number)
        settings.append(fit_setting(pairs, config.temperature, options.quantiles, options.fit))
        evidence.append(pairs)
        prompts |= dict.fromkeys(hashed(chain.prompt) for chain in chains)
    data = recorded(options, configs, facts, settings, list(prompts))
    tensors = {"sigma": sigma.cpu(), "evidence": torch.cat(evidence)}
    texts = {"README.md": card(name, data)} | plots(evidence, settings)
    return ArcCalibration(data, tensors, texts, name)


def _sigma(pair: Pair) -> torch.Tensor:
    """Return the standard deviation of each dimension of the input embeddings (algorithm 1, line 1)."""
    context = pair.context("", [0])
    kit = pair.solver.kit("sigma", "", "plain")

    def plans() -> Any:
        yield context, deviation(context, kit, pair.engine.vocabulary)

    (done,) = pair.solver.driver.run(plans())
    return cast("torch.Tensor", done.value)


def recorded(
    options: Options,
    configs: Sequence[ProbeConfig],
    model: ModelFacts,
    settings: Sequence[Setting],
    prompts: Sequence[str],
) -> dict[str, Any]:
    """Return the artifact's config."""
    config, highest = configs[0], max(options.temperatures)
    return {
        "kind": ArcCalibration.kind,
        "version": ArcCalibration.version,
        "model": binding.of(model),
        "temperature": {
            "sampled": highest,
            "lowest": min(options.temperatures),
            "highest": highest,
        },
        "settings": [setting.to_json() for setting in settings],
        "prompts": list(prompts),
        "data": provenance_of(config)
        | {"seed": config.seed, "top_k": config.top_k, "top_p": config.top_p, "min_p": config.min_p}
        | {"draft": None if config.draft.plain else canonical_name(config.draft.model)}
        | {name: getattr(options, name) for name in ("positions", "levels")}
        | ({"lengths": list(options.lengths)} if options.lengths else {}),
        "training": asdict(options.quantiles)
        | {"fit": options.fit, "top": options.top, "smoothing": options.smoothing},
        "provenance": base.made_with(),
    }


def show(calibration: ArcCalibration, console: Screen) -> None:
    headings = ("T", "c_s'", "alpha*kappa", "tau", "pairs", "JS mean", "JS <= U [95 %]")
    table = table_of(*headings, words=0)
    for setting in calibration.settings:
        by = setting.constants
        constants = [f"{x:.4g}" for x in (by.c_s, by.alpha_kappa, by.tau)]
        for kind in ("uniform", "drafted"):
            if figures := setting.figures.get(kind):
                pairs, js = f"{figures['pairs']:,} {kind}", f"{figures['js_mean']:.4f}"
                share = f"{figures['coverage']:.3f} {interval(figures['coverage_interval'], 3)}"
                table.add_row(f"{setting.temperature:g}", *constants, pairs, js, share)
    console.print(table)
    for setting in calibration.settings:
        if warning := vacuous(float(setting.constants.tau)):
            console.say(f"T = {setting.temperature:g}: {warning}")


def run(arguments: Sequence[str]) -> None:
    console = open_console()
    calibration, out = calibrate(arguments, Steps(console))
    show(calibration, console)
    console.say(f"calibration: {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
