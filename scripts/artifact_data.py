"""How `make artifacts` makes probes, datastores and calibrations, and what their files must then contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import artifact_making
import build_tiny_datastores as datastores
import judge_tiny_probes as judging
import train_tiny_probes as probes
from artifact_making import Wanted, command, copying, found_in, script, stages, weights

from semspec.artifacts import binding
from semspec.artifacts.base import CONFIG
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.probe import Probe
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.calibration.stopping import described_stop
from semspec.cli import calibrate, calibrate_risk, calibrate_stop
from semspec.datastores import indices
from semspec.training.datastores.settings import artifact_config
from semspec.training.datastores.settings import split_options as of_datastore
from semspec.training.probes.compose import build
from semspec.training.probes.pipeline import recorded
from semspec.training.probes.settings import ProbeConfig

ARC = ("draft=tiny", "problems=200", "positions=16", "temperatures=1.0,0.6,0.3", "fit=drafted", "sequence=1")  # fmt: skip
RISK = ("score=logprob",)
STOP = (
    *("stop=probe", "train=true", "accept=logprob", "salvage=true", "nested=lm", "problems=250", "seed=11"),
    *("benchmark.seed=20261124", "concurrency=16", "layers=0,6,12,18,24", "hidden=16,8"),
)  # fmt: skip
CALIBRATED = "probe-tiny-target-plus"  # what accept=semantic_risk asks


def of_probe(name: str, folder: Path) -> Wanted:
    config = build(probes.options_of(name))
    routes = config.routes
    asked = recorded(
        config, artifact_making.facts("tiny-draft" if config.probed == "draft" else "tiny-target")
    )
    contexts = config.problems * config.per_problem
    kept = config.samples if routes or not config.keep else config.keep
    each = kept + (0 if routes else asked["data"]["drafted"])
    asked["data"] |= {"contexts": contexts, "rows": contexts * each}
    best = found_in(folder, CONFIG, "training.best_epoch")
    if isinstance(best, int):
        asked["training"]["epochs"] = min(config.epochs, best + config.patience)
    if routes:
        asked["advantage"] = {"margin": config.margin}
        asked["target"] = {"fingerprint": artifact_making.facts("tiny-target").fingerprint}
    if folder.name == CALIBRATED:
        asked["calibration"] = of_steps(calibrate_risk.composed(None, ()))
    return {CONFIG: asked}


def of_steps(config: ProbeConfig) -> dict[str, Any]:
    """Return the expected record of a calibration's steps."""
    problems = config.problems * config.per_problem
    how = calibrate_risk.drawn(config)
    return {"steps": problems * config.drafted, "problems": config.problems, **how}


def make_probe(name: str, work: Path, made: Path) -> list[list[str]]:
    out, both = made / probes.made(name), weights()
    kept = stages(work, "probes", build(probes.options_of(name)).sampled(), both)
    lines = [script("train_tiny_probes", "--work", kept, "--out", made, "--only", name)]
    if out.name == CALIBRATED:
        steps = stages(work, "risk-plus", calibrate_risk.GIVEN, both)
        lines.append(command("calibrate_risk", f"probe={out}", f"folder={steps}"))
    return lines


def of_cards(folder: Path) -> Wanted:
    """Return what each probe's card says of right and wrong steps; ``folder`` holds all probes."""
    digests = {path.name: Probe.load(str(path)).digest for path in sorted(folder.glob("probe-*"))}
    wanted: dict[str, Any] = {}
    for name in (probes.made(name) for name in probes.PROBES if name != "router"):
        pairs = [(judging.PREFIX + t, judging.PREFIX + d) for t, d in judging.PAIRS]
        others = {t if name == d else d for t, d in pairs if name in (t, d)}
        fresh = judging.conditions() | {"digest": digests.get(name)}
        fresh["pairs"] = {other: {"digest": digests.get(other)} for other in others}
        wanted[f"{name}/{CONFIG}"] = {"metrics": {"judging": {"fresh": fresh}}}
    return wanted


def of_store(kind: str, folder: Path) -> Wanted:
    options, config = of_datastore(datastores.options_of(kind))
    cls = SparseDatastore if kind == "sparse" else DenseDatastore
    total = {"documents": config.problems, "tokens": 0}
    asked = artifact_config(cls, config, options, total)
    del asked["provenance"], asked["data"]["tokens"]
    model = binding.of(artifact_making.facts("tiny-target"))
    if kind == "sparse":
        named = {name: model[name] for name in ("id", "fingerprint", "tokenizer")}
        return {CONFIG: asked | {"model": named, "depth": options.depth}}
    asked |= {"model": model, "dims": options.dims, "training": {"longest": options.longest}}
    if options.index == "auto":
        entries = sum(found_in(folder, CONFIG, "shards") or [0])
        asked["index"] = {"name": indices.suitable_index(entries)}
    return {CONFIG: asked}


def make_store(kind: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(
        work, kind, datastores.options_of(kind), artifact_making.facts("tiny-target").fingerprint
    )
    places = ("--work", kept, "--out", made, "--only", kind)
    return [script("build_tiny_datastores", *places)]


def of_arc(folder: Path) -> Wanted:
    options, configs = calibrate.composed(ARC)
    asked = calibrate.recorded(options, configs, artifact_making.facts("tiny-target"), [], [])
    del asked["provenance"], asked["prompts"]
    asked["settings"] = [{"temperature": t} for t in options.temperatures]
    return {CONFIG: asked}


def make_arc(work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "arc", ARC, weights())
    return [command("calibrate", *ARC, f"folder={kept}", f"out={made / 'arc-tiny'}")]


def of_risk(folder: Path) -> Wanted:
    config = calibrate_risk.composed(None, ())
    steps = of_steps(config)
    sampled = steps.pop("temperature")
    return {
        CONFIG: {
            "score": "logprob",
            "model": binding.of(artifact_making.facts("tiny-target")),
            "split": config.split,
            "temperature": dict.fromkeys(("sampled", "lowest", "highest"), sampled),
            "data": calibrate_risk.origin(config) | steps,
        }
    }


def make_risk(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "risk", RISK, calibrate_risk.GIVEN, weights())
    return [command("calibrate_risk", *RISK, f"folder={kept}", f"apart={made / name}")]


def of_stop(folder: Path) -> Wanted:
    config, own = calibrate_stop.read(STOP)
    how = calibrate_stop.how(config)
    split, temperature = how.pop("split"), how.pop("temperature")
    learning = ProbeConfig(train_seed=own.train_seed, hidden=list(own.hidden)).learning
    stop = described_stop(config.stop)
    features = {
        "pooling": own.pooling.split(","),
        "layers": list(own.layers),
        "span": own.span,
        "hidden": list(own.hidden),
    }
    return {
        CONFIG: {
            "model": binding.of(artifact_making.facts("tiny-target")),
            "split": split,
            "temperature": {"sampled": temperature},
            "features": features,
            "stop": {name: stop["options"][name] for name in ("words", "answer")},
            "data": how | {"problems": config.problems},
            "training": learning,
        }
    }


def make_stop(name: str, work: Path, made: Path) -> list[list[str]]:
    kept = stages(work, "stop", STOP, weights())
    return [
        command("calibrate_stop", *STOP, f"folder={kept}"),
        copying(kept / "probe", made / name),
    ]
