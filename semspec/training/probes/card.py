"""Card and plots of a probe: properties, models and figures."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semspec.models import packaged
from semspec.report.svg import Plot
from semspec.training.probes.judging import section

SHOWN = 600  # points of a scatter plot

CARD = """\
---
library_name: semspec
license: apache-2.0
base_model: {base_model}
tags: [semspec, speculative-decoding, probe, semantic-probability]
model-index:
- name: {name}
  results:
  - task:
      type: semantic-probability
    dataset:
      name: {dataset}
      type: {dataset_type}
    metrics:
{metrics}
---
# {name}

A semantic-probability probe of the {role} model `{model}`: from the model's states over a reasoning step it
predicts the probability that the model, in this context, writes something with the same meaning. Made by
`python -m semspec.train_probe` for semspec's `accept=semantic` and related rules, after "Beyond Tokens:
Semantic-Aware Speculative Decoding" (SemanticSpec).

| | |
|---|---|
| model | `{model}`, {layers} layers, width {width}{revision} |
| tokenizer | `{tokenizer}` |
| steps | split={split} |
| temperature | sampled at {sampled:g}; for {lowest:g} to {highest:g} |
| features | {features}: {inputs:,} numbers |
| perceptron | {inputs:,} - {hidden} - 1, {activation}, loss {loss} |
| data | {data} |
| rows | {train_rows:,} for training, {validation_rows:,} for validation, {test_rows:,} for the test; split by problem |
{drafted}
## Measured on held-out problems

| | rows | R2 | Spearman | AUROC at 0.5 | ECE |
|---|---|---|---|---|---|
{table}

*own*: steps that this model sampled; *drafted*: steps of the other model, which are the ones a rule judges.
The lowest log-probability is the score of `accept=logprob`; it only ranks steps. AUROC at 0.5 also depends on how often the model
writes a right step, which no rule asks.
{judging}
![calibration](calibration.svg) ![scatter](scatter.svg) ![learning curve](learning_curve.svg){states}
"""
STATES = """ ![states](states.svg)

*states*: the features of test steps along their two principal components, by semantic probability (the paper's figure 2)."""
PLACED = 300  # steps in that figure
SHADES = ((1 / 3, "below a third"), (2 / 3, "a third to two"), (math.inf, "above"))


def card(name: str, config: Mapping[str, Any], states: bool = False) -> str:
    """Return the text of README.md; ``states``: it shows a plot of the states, too."""
    data, training, metrics = config["data"], config["training"], config["metrics"]
    rows = [_row(f"this probe, {part}", f) for part, f in metrics["test"].items()]
    rows += [_row(label, f) for label, f in metrics["baselines"].items()]
    shown = metrics["test"]["all"]
    listed = [
        f"    - type: {kind}\n      value: {shown[kind]:.4f}"
        for kind in ("r2", "spearman", "auroc", "ece")
        if shown[kind] is not None
    ]
    judging = metrics.get("judging", {})
    judged = judging.get("fresh") or judging.get("test") or {}
    if judged.get("auroc") is not None:
        listed.append(f"    - type: auroc_right_wrong\n      value: {judged['auroc']:.4f}")
    source = data.get("data") or "semspec's embedded world"
    return CARD.format(
        **common(config),
        name=name,
        dataset=source,
        dataset_type=source if "/" in source else "synthetic",
        metrics="\n".join(listed),
        role=config["role"],
        **{k: config["temperature"][k] for k in ("lowest", "highest")},
        features=_features(config["features"]),
        data=_data(data),
        **{f"{part}_rows": count for part, count in training["rows"].items()},
        drafted=_drafted(training.get("drafted")),
        table="\n".join(rows),
        judging=section(judging),
        states=STATES if states else "",
    )


def common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that all probes' cards share: model, steps and perceptron."""
    model, features = config["model"], config["features"]
    # the card's metadata wants a repository on the Hub, which an embedded model is not
    base = model["id"].rpartition("/")[2] if model["id"].startswith("embedded/") else model["id"]
    return {
        "base_model": packaged.repository_of(model["id"]) or base,
        "model": model["id"],
        **{k: model[k] for k in ("layers", "width")},
        "revision": f", revision `{model['revision']}`" if model["revision"] else "",
        "tokenizer": model["tokenizer"][:16],
        "split": config["split"],
        "sampled": config["temperature"]["sampled"],
        **{k: features[k] for k in ("inputs", "activation")},
        "hidden": " - ".join(map(str, features["hidden"])),
        "loss": config["training"]["loss"],
    }


def pooled(features: Mapping[str, Any], span: str) -> str:
    """Say how states are pooled, over which span and from which layers."""
    layers = features["layers"]
    which = f"layers {', '.join(map(str, layers))}" if layers else "all layers"
    return f"{' + '.join(features['pooling'])} over {span}, {which}"


def _row(label: str, f: Mapping[str, Any]) -> str:
    cells = ["-" if f[k] is None else f"{f[k]:.3f}" for k in ("r2", "spearman", "auroc", "ece")]
    return f"| {label} | {f['rows']:,} | {' | '.join(cells)} |"


def _features(features: Mapping[str, Any]) -> str:
    parts = []
    if features["pooling"]:
        parts.append(pooled(features, "the step's tokens"))
    if features["logprobs"]:
        parts.append("token log-probabilities")
    return " and ".join(parts)


def _data(data: Mapping[str, Any]) -> str:
    where = data.get("data") or f"embedded world ({', '.join(data.get('domains', []))})"
    chains = f", chains by {data['chains']}" if data.get("chains") else ""
    trained = f"; trained on {', '.join(data['trained_on'])} only" if data["trained_on"] else ""
    drafted = f" + {data['drafted']} of the other model" if data["drafted"] else ""
    return (
        f"{where}{chains}: {data['contexts']:,} contexts x {data['samples']} samples{drafted},"
        f" clustered by {data['cluster']}{trained}"
    )


def _drafted(counts: Mapping[str, Any] | None) -> str:
    """Return the line about the drafted training steps; "" for older probes, which did not count them."""
    if counts is None:
        return ""
    share = counts["wrong"] / counts["steps"]
    return (
        f"| drafted steps | {counts['steps']:,} of the training rows can be judged, {share:.1%} of them are wrong;"
        f" right is by {counts['truth']} |\n"
    )


def states_plot(features: np.ndarray, truth: np.ndarray) -> str:
    """Plot steps by the first two principal components of their features [steps, size], shaded by probability."""
    x = features.astype(np.float32)
    x -= x.mean(0)
    deviation = x.std(0)
    x /= np.where(deviation < 1e-6, 1, deviation)
    # PCA by the steps' Gram matrix, since there are few steps and many features
    values, vectors = np.linalg.eigh(x @ x.T)
    first, second = (vectors[:, at] * math.sqrt(max(values[at], 0.0)) for at in (-1, -2))
    plot = Plot("States of test steps", "first principal component", "second")
    low = -math.inf
    for high, label in SHADES:
        here = (truth >= low) & (truth < high)
        if here.any():
            plot.points(first[here].tolist(), second[here].tolist(), label=label, radius=2)
        low = high
    return plot.svg()


def plots(
    score: np.ndarray,
    truth: np.ndarray,
    bins: Sequence[Mapping[str, float]],
    curve: Sequence[Mapping[str, Any]],
    seed: int,
) -> dict[str, str]:
    """Return the card's SVG files by name."""
    calibration = Plot("Calibration (test)", "probe", "semantic probability", x=(0, 1), y=(0, 1))
    calibration.line([0, 1], [0, 1], dashed=True)
    calibration.points([b["said"] for b in bins], [b["true"] for b in bins], radius=5)
    chosen = random.Random(seed).sample(range(len(score)), min(SHOWN, len(score)))
    scatter = Plot("Test steps", "probe", "semantic probability", x=(0, 1), y=(-0.02, 1.02))
    scatter.points([score[i] for i in chosen], [truth[i] for i in chosen], radius=2)
    learning = Plot("Learning curve", "rows to train on", "test", log_x=True)
    xs = [c["rows"] for c in curve]
    for kind, label in (("spearman", "Spearman"), ("r2", "R2")):
        ys = [math.nan if c[kind] is None else c[kind] for c in curve]
        learning.line(xs, ys, label=label)
    drawn = {"calibration": calibration, "scatter": scatter, "learning_curve": learning}
    return {f"{name}.svg": plot.svg() for name, plot in drawn.items()}
