"""``python -m semspec.calibrate_risk``: draw the steps on which rules certify an asked risk.

One context and one drafted step of each fresh problem, so that the steps are independent; the
target continues every context many times, and a drafted step's cluster share is its semantic
probability. Its score is a probe's (``accept=semantic_risk``), or with ``score=logprob`` its lowest
log-probability (``accept=logprob``). Scores and probabilities go into the probe's folder (or a
copy, ``out=``) or into one of their own (``apart=``); ``measure=true`` compares them with the thresholds certified now.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.artifacts import base
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.risk import certify
from semspec.cli.command import run_command
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, pairs, read_known
from semspec.jobs.stages import hold
from semspec.models.location import EMBEDDED, ModelFacts, canonical_name
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, open_console, table_of
from semspec.results.metrics import wilson
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import provenance_of
from semspec.training.probes.dataset import Rows
from semspec.training.probes.pipeline import labelled_rows, sampled
from semspec.training.probes.settings import ProbeConfig

RISKS = (0.02, 0.05, 0.1)
SCORES = ("probe", "logprob")
Columns = tuple[Sequence[float], Sequence[float], Sequence[int]]
"""Scores, semantic probabilities, problem numbers."""
COMMAND = "semspec.calibrate_risk"
GIVEN = pairs(  # of semspec.train_probe's options, where the user says nothing else
    "draft=tiny chains=mixed problems=600 per_problem=1 samples=20 keep=1 drafted=1 batch=112"
    " seed=1".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command's own options; every other one is an option of semspec.train_probe."""

    # fmt: off
    probe: str = option("", "the probe of the target; its model is the one to sample")
    out: str = option("", "the probe with its new calibration (default: its folder, if it is one)")
    apart: str = option("", "a folder for the calibration alone, for accept.calibration=; the probe stays as it is")
    score: str = option(
        SCORES[0], "probe, or logprob: the steps' lowest log-probability, for accept=logprob, without a probe", choices=SCORES)
    measure: bool = option(False, "calibrate nothing; measure on fresh steps the risk that the probe (or apart=) certifies")
    least: float = option(0.05, "a step below this semantic probability counts as wrong")
    # fmt: on


HELP = f"""\
usage: python -m semspec.calibrate_risk probe=FOLDER_OR_REPO [out=FOLDER] [measure=true] [...]
       python -m semspec.calibrate_risk score=logprob apart=FOLDER [model=...] [measure=true] [...]

{described(Options)}
  problems=600 seed=1 draft=tiny folder=runs/...   and every other option of semspec.train_probe

One step of each problem is used. A run that was killed resumes in the same folder=.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """Drafted steps with their scores and semantic probabilities."""

    scores: list[float]
    semantic: list[float]
    groups: list[int]
    how: dict[str, Any]  # how they were drawn
    source: dict[str, Any]  # where problems and meanings come from
    model: ModelFacts  # the target
    split: str

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        columns = {"scores": self.scores, "semantic": self.semantic, "groups": self.groups}
        return {name: torch.tensor(column) for name, column in columns.items()}


def drafted_steps(probe: Probe | None, arguments: Sequence[str], steps: Steps) -> Judged:
    """Sample, cluster and score: with a probe, or by the lowest log-probability, which needs no states."""
    given = dict(GIVEN)
    read: dict[str, Any] = {"pooling": [], "layers": "all", "logprobs": True}
    if probe:
        given |= {
            "features": "plus",
            "pooling": f"[{','.join(probe.features.pooling) or 'mean'}]",
            "temperature": str(probe.config["temperature"]["sampled"]),
            "split": probe.config["split"],
        }
        layers = list(probe.features.layers) or "all"
        read = {"pooling": list(probe.features.pooling), "layers": layers}
        read["logprobs"] = probe.features.logprobs
    else:
        given |= {"features": "logprobs", "pooling": "[]"}
    given |= pairs(arguments)
    model = probe.config["model"]["id"] if probe else canonical_name(_composed(given).model)
    oracle = "oracle" if model.startswith(EMBEDDED) else "nli"
    config = _composed({"cluster": oracle} | given)
    config = dataclasses.replace(config, features=dataclasses.replace(config.features, **read))
    own = probe.name if probe else f"logprob-{model.rpartition('/')[2]}"
    folder = Path(config.folder or f"runs/risk-{own}-{config.seed}")
    with hold(folder):
        chains, facts = sampled(config, folder, steps)
        if probe:
            probe.check(facts, split=config.split, temperature=config.temperature, role="target")
        return _judged(probe, labelled_rows(config, folder, chains, facts, steps), config, facts)


def _composed(given: Mapping[str, str]) -> ProbeConfig:
    return build([f"{k}={v}" for k, v in given.items()], COMMAND, names(Options))


def drawn(config: ProbeConfig) -> dict[str, Any]:
    """Describe how the steps are drawn: a guarantee holds only for steps drawn the same way."""
    draft = None if config.draft.plain else canonical_name(config.draft.model)
    names = ("temperature", "top_k", "top_p", "min_p")
    sampling = {name: getattr(config, name) for name in names}
    return {**sampling, "draft": draft}


def _judged(probe: Probe | None, rows: Rows, config: ProbeConfig, model: ModelFacts) -> Judged:
    """Score the drafted steps among all rows, reading their states from the folder."""
    chosen = [i for i in range(len(rows)) if not rows.own[i]]
    if not chosen:
        raise UserError("no step was drafted: a draft= with a model is needed")
    numbers = {name: n for n, name in enumerate(dict.fromkeys(rows.chains))}
    scores = torch.from_numpy(rows.lowest)
    if probe:
        scores = torch.zeros(len(rows))
        for batch in rows.batches(chosen, 512):
            scores[batch.index] = probe.of_rows(batch.x)
    meanings = {"samples": config.samples, "cluster": config.cluster.name, "seed": config.seed}
    return Judged(
        scores[chosen].tolist(),
        rows.target[chosen].tolist(),
        [numbers[rows.chains[i]] for i in chosen],
        drawn(config),
        provenance_of(config) | meanings,
        model,
        config.split,
    )


def measured(columns: Columns, fresh: Judged, least: float) -> list[dict[str, Any]]:
    """Compare asked and measured risk on steps that the calibration has not seen."""
    rows = []
    for risk in RISKS:
        found = certify(*columns, risk=risk, least=least)
        steps = zip(fresh.scores, fresh.semantic, strict=True)
        kept = [true for score, true in steps if score >= found.threshold]
        wrong = sum(true < least for true in kept)
        rows.append(
            {
                "risk": risk,
                "least": least,
                "threshold": found.threshold,
                "calibration_steps": found.steps,
                "calibration_wrong": found.wrong,
                "bound": found.bound,
                "steps": len(fresh.scores),
                "accepted": len(kept),
                "wrong": wrong,
                "measured": wrong / len(kept) if kept else None,
                "interval": wilson(wrong, len(kept)),
            }
        )
    return rows


def _thresholds(fresh: Judged, least: float) -> dict[str, float | None]:
    """Return the certified threshold for each risk, None if there is none, for the card."""
    found: dict[str, float | None] = {f"threshold_{risk:g}": None for risk in RISKS}
    for name, risk in zip(found, RISKS, strict=True):
        with contextlib.suppress(UserError):  # too few steps for so small a risk
            certified = certify(fresh.scores, fresh.semantic, fresh.groups, risk=risk, least=least)
            found[name] = certified.threshold
    return found


def show(rows: Sequence[dict[str, Any]], console: Screen) -> None:
    table = table_of("asked risk", "threshold", "accepted", "measured [95 %]", words=0)
    for row in rows:
        low, high = row["interval"] or (0.0, 1.0)
        found = "-" if row["measured"] is None else f"{row['measured']:.3f} [{low:.3f}, {high:.3f}]"
        accepted = f"{row['accepted']} of {row['steps']}"
        table.add_row(f"{row['risk']:g}", f"{row['threshold']:.3f}", accepted, found)
    console.print(table)


def run(arguments: Sequence[str]) -> None:
    own, passed = read_known(Options, arguments, COMMAND)
    _check(own)
    is_folder = own.probe.startswith(EMBEDDED) or Path(own.probe).is_dir()
    if own.probe and not (own.out or own.apart or own.measure or is_folder):
        raise UserError(f"{own.probe} is no folder: say where to write the probe, out=FOLDER")
    console = open_console()
    probe = Probe.load(own.probe) if own.probe else None
    columns = _certifying(probe, own.apart) if own.measure else None
    fresh = drafted_steps(probe, passed, Steps(console))
    if columns:
        show(measured(columns, fresh, own.least), console)
        return
    if own.apart:
        _apart(probe, fresh, own.least).save(Path(own.apart))
        console.say(f"{len(fresh.scores)} steps: {own.apart}")
        return
    assert probe is not None
    probe.tensors |= {f"calibration.{name}": column for name, column in fresh.tensors.items()}
    probe.config["calibration"] = {
        "steps": len(fresh.scores),
        "problems": len(set(fresh.groups)),
        **fresh.how,
        "below": {str(own.least): sum(x < own.least for x in fresh.semantic)},
    }
    out = Path(own.out or base.find(own.probe))
    probe.save(out)
    console.say(f"{len(fresh.scores)} steps calibrate {out}")


def _check(own: Options) -> None:
    """Raise UserError for options that do not go together."""
    if own.score == "logprob" and (own.probe or own.out):
        raise UserError("score=logprob asks no probe: leave probe= and out= out")
    if own.score == "logprob" and not own.apart:
        way = "to write or with measure=true to read: apart=FOLDER"
        raise UserError(f"give the calibration's folder, {way}")
    if own.score != "logprob" and not own.probe:
        raise UserError("give the probe to calibrate: probe=FOLDER, or score=logprob (see --help)")
    if own.out and own.apart:
        raise UserError("out= writes into a probe, apart= beside it: give one of them")


def _certifying(probe: Probe | None, apart: str) -> Columns:
    """Return the steps on which thresholds are certified now."""
    if apart:
        given = RiskCalibration.load(apart)
        given.check_score(probe, allow_mismatch=False)
        return given.columns
    assert probe is not None
    scores, semantic, groups = (column.tolist() for column in probe.calibration)
    return scores, semantic, groups


def _apart(probe: Probe | None, fresh: Judged, least: float) -> RiskCalibration:
    """Return the calibration as an artifact of its own, with its provenance."""
    metrics, how = _thresholds(fresh, least), fresh.source | fresh.how
    if probe:
        made = RiskCalibration.of(probe, fresh.tensors, metrics, how)
    else:
        made = RiskCalibration.of_logprobs(fresh.model, fresh.split, fresh.tensors, metrics, how)
    made.config["provenance"] = base.made_with()
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(run, HELP, arguments)
