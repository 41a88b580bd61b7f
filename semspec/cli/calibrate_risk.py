"""``python -m semspec.calibrate_risk``: sample the steps on which acceptance rules certify a requested risk.

Each fresh problem gives one context and one drafted step, so the steps are independent. The target continues
every context many times; the share of its samples in the drafted step's cluster is that step's semantic
probability. The step's score comes from a probe (``accept=semantic_risk``), or with ``score=logprob`` is the
target's lowest token log-probability (``accept=logprob``); ``score=cascade`` adds the draft model's lowest
(``accept=cascade``). Scores and probabilities go into the probe's folder, a copy of it (``out=``) or a folder of
their own (``apart=``). ``measure=true`` saves nothing: it tests the certified thresholds on the fresh steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.artifacts import base
from semspec.artifacts.probe import Probe
from semspec.artifacts.risk import RiskCalibration
from semspec.calibration.cascade import CertifiedCascade, certify_cascade
from semspec.calibration.risk import Certified, certify
from semspec.cli.command import run_command
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.jobs.options import described, names, option, pairs, read_known
from semspec.jobs.stages import hold
from semspec.models.location import EMBEDDED, ModelFacts, canonical_name
from semspec.report.progress import Steps
from semspec.report.terminal import Screen, interval, open_console, percent, table_of
from semspec.results.metrics import wilson
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import provenance_of
from semspec.training.probes.dataset import Rows
from semspec.training.probes.pipeline import labelled_rows, sampled
from semspec.training.probes.settings import ProbeConfig

RISKS = (0.02, 0.05, 0.1)
SCORES = ("probe", "logprob", "cascade")
Columns = tuple[Sequence[float], Sequence[float], Sequence[int]]
"""Scores, semantic probabilities, problem numbers."""
CascadeColumns = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[int]]
"""The draft's scores, followed by the columns above."""
COMMAND = "semspec.calibrate_risk"
GIVEN = pairs(  # defaults that differ from semspec.train_probe's
    "draft=tiny chains=mixed problems=600 per_problem=1 samples=20 keep=1 drafted=1 batch=112"
    " seed=1".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The command's own options; every other one is an option of semspec.train_probe."""

    # fmt: off
    probe: str = option("", "the target's probe; its model is sampled")
    out: str = option("", "where the probe goes with its new calibration (default: its own folder, if probe= is one)")
    apart: str = option("", "a folder for the calibration alone, used as accept.calibration=; the probe is not changed")
    score: str = option(
        SCORES[0], "probe; logprob: a step's lowest log-probability, without a probe, for accept=logprob; cascade: also the draft's,"
        " for accept=cascade", choices=SCORES)
    measure: bool = option(False, "calibrate nothing; on fresh steps, measure the risk that the probe (or apart=) certifies")
    least: float = option(0.05, "a step below this semantic probability counts as wrong")
    # fmt: on


HELP = f"""\
usage: python -m semspec.calibrate_risk probe=FOLDER_OR_REPO [out=FOLDER] [measure=true] [...]
       python -m semspec.calibrate_risk score=logprob|cascade apart=FOLDER [model=...] [measure=true] [...]

{described(Options)}
  problems=600 seed=1 draft=tiny folder=runs/...   and every other option of semspec.train_probe

Each problem gives one step. A killed command resumes in the same folder=.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """Drafted steps with their scores and semantic probabilities."""

    scores: list[float]
    semantic: list[float]
    groups: list[int]
    how: dict[str, Any]  # how they were drawn
    source: dict[str, Any]  # where the problems come from and how meanings were judged
    model: ModelFacts  # the target
    split: str
    drafts: list[float] | None = None  # the draft's own scores, for a cascade

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        columns = {"scores": self.scores, "semantic": self.semantic, "groups": self.groups}
        if self.drafts is not None:
            columns["drafts"] = self.drafts
        return {name: torch.tensor(column) for name, column in columns.items()}


def drafted_steps(
    probe: Probe | None, arguments: Sequence[str], steps: Steps, cascade: bool = False
) -> Judged:
    """Sample, cluster and score steps: with a probe, or by the lowest log-probability, which needs no states."""
    config = composed(probe, arguments)
    name = canonical_name(config.model).rpartition("/")[2]
    own = probe.name if probe else f"{'cascade' if cascade else 'logprob'}-{name}"
    folder = Path(config.folder or f"runs/risk-{own}-{config.seed}")
    with hold(folder):
        chains, facts = sampled(config, folder, steps)
        if probe:
            probe.check(facts, split=config.split, temperature=config.temperature, role="target")
        rows = labelled_rows(config, folder, chains, facts, steps)
        return _judged(probe, rows, config, facts, cascade)


def composed(probe: Probe | None, arguments: Sequence[str]) -> ProbeConfig:
    """Return the configuration for sampling; a probe sets features, temperature and split."""
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
    return dataclasses.replace(config, features=dataclasses.replace(config.features, **read))


def _composed(given: Mapping[str, str]) -> ProbeConfig:
    return build([f"{k}={v}" for k, v in given.items()], COMMAND, names(Options))


def drawn(config: ProbeConfig) -> dict[str, Any]:
    """Describe how the steps are drafted: a guarantee holds only for steps drafted the same way."""
    draft = None if config.draft.plain else canonical_name(config.draft.model)
    return {**dataclasses.asdict(config.sampling), "draft": draft}


def origin(config: ProbeConfig) -> dict[str, Any]:
    """Describe where the problems come from and how meanings were judged."""
    meanings = {"samples": config.samples, "cluster": config.cluster.name, "seed": config.seed}
    return provenance_of(config) | meanings


def _judged(
    probe: Probe | None, rows: Rows, config: ProbeConfig, model: ModelFacts, cascade: bool
) -> Judged:
    """Score the drafted steps among the rows; a probe reads their states from disk."""
    chosen = [i for i in range(len(rows)) if not rows.own[i]]
    if not chosen:
        raise UserError("no step was drafted: give draft= with a model")
    drafts = [float(x) for x in rows.drafted[chosen]] if cascade else None
    if drafts is not None and any(math.isnan(x) for x in drafts):
        raise UserError(
            "an older version sampled these steps without the draft model's"
            " log-probabilities: give another folder="
        )
    numbers = {name: n for n, name in enumerate(dict.fromkeys(rows.chains))}
    scores = torch.from_numpy(rows.lowest)
    if probe:
        scores = torch.zeros(len(rows))
        for batch in rows.batches(chosen, 512):
            scores[batch.index] = probe.of_rows(batch.x)
    return Judged(
        scores[chosen].tolist(),
        rows.target[chosen].tolist(),
        [numbers[rows.chains[i]] for i in chosen],
        drawn(config),
        origin(config),
        model,
        config.split,
        drafts,
    )


def measured(columns: Columns, fresh: Judged, least: float) -> list[dict[str, Any]]:
    """Compare requested and measured risk on steps that the calibration has not seen."""
    return [_row(certify(*columns, risk=risk, least=least), risk, fresh, least) for risk in RISKS]


def measured_cascade(columns: CascadeColumns, fresh: Judged, least: float) -> list[dict[str, Any]]:
    """Do the same for a cascade; ``settled`` is the share of fresh steps that the target would not verify."""
    rows = []
    for risk in RISKS:
        found = certify_cascade(*columns, risk=risk, least=least)
        rows.append(_row(found, risk, fresh, least))
    return rows


def _row(
    found: Certified | CertifiedCascade, risk: float, fresh: Judged, least: float
) -> dict[str, Any]:
    """Return requested and measured risk of the steps that one or two thresholds accept."""
    settled = [False] * len(fresh.scores)
    if isinstance(found, CertifiedCascade):
        assert fresh.drafts is not None
        settled = [own >= found.sure for own in fresh.drafts]
    steps = zip(fresh.scores, settled, fresh.semantic, strict=True)
    kept = [true for score, sure, true in steps if sure or score >= found.threshold]
    wrong = sum(true < least for true in kept)
    row = {
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
    if isinstance(found, CertifiedCascade):
        row |= {"sure": found.sure, "settled": sum(settled) / len(settled)}
    return row


def _thresholds(fresh: Judged, least: float) -> dict[str, float | None]:
    """Return the certified threshold for each risk (None if there is none), for the card."""
    found: dict[str, float | None] = {f"threshold_{risk:g}": None for risk in RISKS}
    columns = fresh.scores, fresh.semantic, fresh.groups
    for risk in RISKS:
        name = f"threshold_{risk:g}"
        with contextlib.suppress(UserError):  # too few steps for so small a risk
            if fresh.drafts is None:
                found[name] = certify(*columns, risk=risk, least=least).threshold
                continue
            both = certify_cascade(fresh.drafts, *columns, risk=risk, least=least)
            found |= {name: both.threshold, f"sure_{risk:g}": both.sure}
    return found


def show(rows: Sequence[dict[str, Any]], console: Screen) -> None:
    cascade = [] if "sure" not in rows[0] else ["draft's", "unread"]
    table = table_of("asked risk", "threshold", *cascade, "accepted", "measured [95 %]", words=0)
    for row in rows:
        share, between = row["measured"], row["interval"]
        found = "-" if share is None else f"{share:.3f} {interval(between, 3)}"
        accepted = f"{row['accepted']} of {row['steps']}"
        more = [f"{row['sure']:.3f}", percent(row["settled"])] if cascade else []
        table.add_row(f"{row['risk']:g}", f"{row['threshold']:.3f}", *more, accepted, found)
    console.print(table)


def run(arguments: Sequence[str]) -> None:
    own, passed = read_known(Options, arguments, COMMAND)
    _check(own)
    is_folder = own.probe.startswith(EMBEDDED) or Path(own.probe).is_dir()
    if own.probe and not (own.out or own.apart or own.measure or is_folder):
        raise UserError(f"{own.probe} is not a folder: give one for the probe, out=FOLDER")
    console = open_console()
    probe = Probe.load(own.probe) if own.probe else None
    cascade = own.score == "cascade"
    columns = _certifying(probe, own.apart) if own.measure and not cascade else None
    both = RiskCalibration.load(own.apart).cascade if own.measure and cascade else None
    fresh = drafted_steps(probe, passed, Steps(console), cascade)
    if both:
        show(measured_cascade(both, fresh, own.least), console)
        return
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
    """Raise UserError for options that exclude each other."""
    free = own.score != SCORES[0]
    if free and (own.probe or own.out):
        raise UserError(f"score={own.score} uses no probe: leave probe= and out= out")
    if free and not own.apart:
        way = "to write or with measure=true to read: apart=FOLDER"
        raise UserError(f"give the calibration's folder, {way}")
    if not free and not own.probe:
        raise UserError("give the probe to calibrate: probe=FOLDER, or score=logprob (see --help)")
    if own.out and own.apart:
        raise UserError(
            "out= writes a probe and apart= a separate calibration: give only one of them"
        )


def _certifying(probe: Probe | None, apart: str) -> Columns:
    """Return the stored calibration steps, on which thresholds are certified."""
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
