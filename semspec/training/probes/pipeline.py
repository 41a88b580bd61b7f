"""Make a probe's folder from a configuration, in four stages that resume after a kill."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semspec.artifacts import base, binding
from semspec.artifacts.probe import Probe
from semspec.errors import UserError
from semspec.jobs.stages import compare_shards, hold
from semspec.models.location import ModelFacts
from semspec.probes.features import resolve
from semspec.report.progress import Steps
from semspec.storage.files import read_json, write_json
from semspec.training.probes import metrics
from semspec.training.probes.advantage import advantages, check_labels, drafted, mark, router
from semspec.training.probes.card import PLACED, card, plots, states_plot
from semspec.training.probes.contexts import FILE as CHAINS
from semspec.training.probes.contexts import Chain, provenance_of, read_chains
from semspec.training.probes.dataset import Rows, divided
from semspec.training.probes.judging import ACCEPTABLE, held_out, truths, wrong_among
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.semantic import cluster_samples, path_of, try_out
from semspec.training.probes.semantic import options as cluster_options
from semspec.training.probes.settings import ProbeConfig, folder_of
from semspec.training.probes.shards import Sample, read_samples
from semspec.training.probes.stages import Sampling, merge

if TYPE_CHECKING:
    from semspec.training.probes.train import Trained

CURVE = (0.12, 0.25, 0.5, 1.0)  # shares of the training chains, for the learning curve
GUARD = 0.002  # share of the acceptable training steps below the guard


def make(config: ProbeConfig, steps: Steps) -> tuple[Probe, Path]:
    """Train and save a probe."""
    folder = folder_of(config)
    out = Path(config.out) if config.out else folder / "probe"
    with hold(folder):
        chains, model = sampled(config, folder, steps)
        rows = labelled_rows(config, folder, chains, model, steps)
        probe = _trained(config, rows, model, out.name, steps)
        probe.save(out)
    return probe, out


def sampled(config: ProbeConfig, folder: Path, steps: Steps) -> tuple[list[Chain], ModelFacts]:
    """Run stages 1 and 2; load no model if they are done.

    Raises UserError if the folder was begun with other options or a shard is not finished.
    """
    work = Sampling(config, folder)
    done = (folder / "sampled.json").exists()
    shards = [] if done else compare_shards(work)
    there = (folder / CHAINS).exists() or (folder / FOLDER).exists()
    if there and not shards and not (folder / "config.json").exists():
        raise UserError(f"{folder} contains samples but no config.json: give another folder=")
    work.keep_options(folder)
    if done:
        return read_chains(folder / CHAINS), work.model
    try_out(config, steps.say)
    if shards:
        return merge(config, shards, folder), work.model
    try:
        chains = work.write_chains(folder, steps)
        write_json(folder / "sampled.json", asdict(work.sample(chains, steps)))
        return chains, work.model
    finally:
        work.close()


def labelled_rows(
    config: ProbeConfig, folder: Path, chains: Sequence[Chain], model: ModelFacts, steps: Steps
) -> Rows:
    """Run stage 3, clustering, and return the labelled rows."""
    into = folder / FOLDER
    contexts = (read_json(folder / "sampled.json") or {}).get("contexts")
    with steps.stage("clustering", contexts) as tell:
        semantic = cluster_samples(config, chains, lambda: read_samples(into), folder, tell.by)
    features = resolve(config.features, model.layers)
    size = features.size(model.layers, model.width)
    samples: Iterable[Sample] = read_samples(into)
    if config.routes:
        samples = drafted(samples)
        semantic = advantages(path_of(config, folder), read_samples(into))
    right = None
    if config.source == "embedded" and not config.routes:
        right = truths(chains, read_samples(into))
    rows = Rows(into, samples, semantic, config.pooling, features, size, config.memory, right)
    if config.routes:
        mark(rows, config.margin)
    return rows


def _trained(config: ProbeConfig, rows: Rows, model: ModelFacts, name: str, steps: Steps) -> Probe:
    from semspec.training.probes.train import described, predict, tensors_of, train

    index = divided(rows, config.train_seed)
    if config.train_on:  # the test keeps all domains: this measures transfer between domains
        for part in ("train", "validation"):
            index[part] = [i for i in index[part] if rows.domains[i] in config.train_on]
            if not index[part]:
                raise UserError(f"no rows of {', '.join(config.train_on)} to train on")
    if config.routes:
        check_labels(rows, index, config.margin)
    curve, truth = list[dict[str, Any]](), rows.target.numpy()[index["test"]]
    made: Trained | None = None
    with steps.stage("training", config.epochs * len(CURVE)) as tell:
        for number, share in enumerate(CURVE):
            chosen = share_of_chains(index["train"], rows.chains, share, config.train_seed)
            made = train(rows, chosen, index["validation"], config, lambda *_: tell.by(1))
            tell.to(config.epochs * (number + 1))
            score = predict(made, rows, index["test"])
            figures = metrics.figures(score, truth)
            curve.append({"share": share, "rows": len(chosen)} | figures)
    assert made is not None
    # no guard for a router: its label is 1 for bad steps, so unknown steps need no low score
    guard = None if config.routes else _guard(rows, index["train"] + index["validation"])
    if guard is not None:
        score[rows.lowest[index["test"]] < guard["lowest"]] = 0.0
    bins = metrics.calibration(score, truth)
    baselines: dict[str, Any] = {}
    beside = metrics.baselines(rows, index["train"], index["test"], config.train_seed)
    for label, other in beside.items():
        found = metrics.parts(other, rows, index["test"], label.startswith("ridge"))
        baselines[label] = found["all"]
        if "drafted" in found:
            baselines[f"{label}, drafted"] = found["drafted"]
    test = metrics.parts(score, rows, index["test"])
    measured = {"test": test, "baselines": baselines, "calibration": bins, "learning_curve": curve}
    if not config.routes:
        judging = held_out(score, rows, index["test"], config.role, config.train_seed)
        measured |= {"judging": {"test": judging}} if judging else {}
    training = described(config, made, rows, index)
    if not config.routes and (drafted_rows := wrong_among(rows, index["train"], config.role)):
        training["drafted"] = drafted_rows
    about = _config(config, rows, model, training, measured)
    tensors = tensors_of(made, rows, score, index["test"])
    if config.routes:
        return router(about, tensors, config, rows, score, index["test"])
    if guard is not None:
        about["guard"] = guard
    texts = {"README.md": card(name, about, states=bool(rows.features.pooling))}
    if rows.features.pooling:
        texts["states.svg"] = states_plot(*_placed(rows, index["test"], config.train_seed))
    texts |= plots(score, truth, bins, curve, config.train_seed)
    return Probe(about, tensors, texts, name)


def _placed(rows: Rows, test: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and semantic probabilities of a random selection of test rows."""
    chosen = sorted(random.Random(f"{seed} states").sample(list(test), min(PLACED, len(test))))
    held = np.empty((len(chosen), rows.size), dtype=np.float16)
    where = {row: at for at, row in enumerate(chosen)}
    for batch in rows.batches(chosen, len(chosen)):
        held[[where[int(i)] for i in batch.index]] = batch.x.half().numpy()
    return held, rows.target.numpy()[chosen]


def _guard(rows: Rows, seen: Sequence[int]) -> dict[str, float] | None:
    """Return the guard: the lowest log-probability below which hardly any acceptable step lies.

    A perceptron's score is arbitrary for steps unlike its training data. A step with a token less likely than the
    guard is such a step, and is scored 0.
    """
    if not rows.features.logprobs:
        return None
    target = rows.target.numpy()[list(seen)]
    lowest = rows.lowest[list(seen)][target >= ACCEPTABLE]
    if not len(lowest):
        return None
    return {"lowest": float(np.quantile(lowest, GUARD)), "share": GUARD}


def share_of_chains(
    rows: Sequence[int], chains: Sequence[str], share: float, seed: int
) -> list[int]:
    """Return the rows of a share of the chains; a larger share includes the smaller ones."""
    names = sorted({chains[i] for i in rows})
    random.Random(f"{seed} curve").shuffle(names)
    kept = set(names[: max(1, round(len(names) * share))])
    return [i for i in rows if chains[i] in kept]


def _config(
    config: ProbeConfig,
    rows: Rows,
    model: ModelFacts,
    training: dict[str, Any],
    measured: dict[str, Any],
) -> dict[str, Any]:
    about = recorded(config, model)
    sizes = {"contexts": len(set(rows.contexts)), "rows": len(rows)}
    return {
        "kind": Probe.kind,
        "version": Probe.version,
        "provenance": base.made_with(),
        **about,
        "data": about["data"] | sizes,
        "training": training,
        "metrics": measured,
    }


def recorded(config: ProbeConfig, model: ModelFacts) -> dict[str, Any]:
    """Return those entries of a probe's config that depend only on the options."""
    features = resolve(config.features, model.layers)
    size = features.size(model.layers, model.width)
    return {
        "role": config.role,
        "model": binding.of(model),
        "split": config.split,
        "temperature": {
            "sampled": config.temperature,
            "lowest": 0.0,
            "highest": max(config.max_temperature, config.temperature),
        },
        "features": features.to_json()
        | {"inputs": size, "hidden": list(config.hidden), "activation": config.activation},
        "data": provenance_of(config)
        | {
            "samples": config.samples,
            "drafted": config.drafted if config.both_write else 0,
            **{name: getattr(config, name) for name in ("top_k", "top_p", "min_p", "seed")},
            "cluster": config.cluster.name,
            "cluster_options": cluster_options(config),
            "trained_on": list(config.train_on),
        },
        "training": config.learning,
    }
