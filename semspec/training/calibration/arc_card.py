"""Card and plots of an ARC-Decode calibration."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from semspec.calibration.arc import COLUMNS, Setting, vacuous
from semspec.decoding.arc_bound import LARGEST_JS, bounds
from semspec.deferred import Tensor
from semspec.models import packaged
from semspec.report.svg import Plot

SHOWN = 600  # points of a scatter plot

CARD = """\
---
library_name: semspec
license: apache-2.0
{base_model}tags: [semspec, speculative-decoding, arc-decode, calibration]
---
# {name}

The ARC-Decode calibration of `{model}`: the deviation of its input embeddings, and the constants of the bound by
which `accept=arc` keeps drafted tokens. Made by `python -m semspec.calibrate` for semspec, after "ARC-Decode:
Risk-Bounded Acceptance for Sampling-Based Speculative Decoding", algorithm 1.

| | |
|---|---|
| model | `{model}`, width {width}{revision} |
| tokenizer | `{tokenizer}` |
| texts | {texts} |
| pairs | {positions} places per text, {levels} levels of a draft; candidates among the {top} likeliest tokens |
| divergence | Jensen-Shannon in nats, on the union of both top-{top} sets, smoothed by {smoothing:g} |
| quantiles | delta = {delta:g}{sequence}, correction {correction} at confidence {confidence:g}, alpha = {alpha:g}, fitted to {fit} pairs |

| T | c_s' | alpha*kappa | tau |
|---|---|---|---|
{constants}

*uniform*: candidates drawn uniformly from the top {top}, as in algorithm 1. *drafted*: tokens that the draft model
proposed at the same places and that are not the target's likeliest: the ones a rule has to decide on.

| T | pairs | texts | mean JS | 99th percentile | JS <= U [95 %, Wilson] |
|---|---|---|---|---|---|
{measured}
{warnings}
![divergence against bound](bound.svg) ![divergences](divergence.svg)
"""


def card(name: str, config: Mapping[str, Any]) -> str:
    """Return the text of README.md."""
    model, data, training = config["model"], config["data"], config["training"]
    settings = [Setting.from_json(s) for s in config["settings"]]
    constants = [
        f"| {s.temperature:g} | {c.c_s:.4g} | {c.alpha_kappa:.4g} | {c.tau:.4g} |"
        for s in settings
        for c in [s.constants]
    ]
    measured = [
        _row(s, kind) for s in settings for kind in ("uniform", "drafted") if s.figures.get(kind)
    ]
    warnings = [
        f"T = {s.temperature:g}: {w}.\n"
        for s in settings
        if (w := vacuous(float(s.constants.tau))) is not None
    ]
    base = packaged.repository_of(model["id"]) or model["id"]
    on_hub = "/" in base and not base.startswith("embedded/")
    draft = f", draft `{data['draft']}`" if data["draft"] else ""
    lengths = "; prompts of {} to {} tokens".format(*data["lengths"]) if data.get("lengths") else ""
    return CARD.format(
        base_model=f"base_model: {base}\n" if on_hub else "",
        name=name,
        model=model["id"],
        width=model["width"],
        revision=f", revision `{model['revision']}`" if model["revision"] else "",
        tokenizer=model["tokenizer"][:12],
        texts=f"{data['problems']} of {data.get('data', 'the embedded world')}, seed {data['seed']}{draft}{lengths}",
        **{name: data[name] for name in ("positions", "levels")},
        **{n: value for n, value in training.items() if n != "sequence"},
        sequence=f" over {training['sequence']} positions" if training["sequence"] else "",
        constants="\n".join(constants),
        measured="\n".join(measured),
        warnings="\n" + "\n".join(warnings) if warnings else "",
    )


def _row(setting: Setting, kind: str) -> str:
    f = setting.figures[kind]
    low, high = f["coverage_interval"]
    return (
        f"| {setting.temperature:g} | {f['pairs']:,} {kind} | {f['groups']:,} | {f['js_mean']:.4f}"
        f" | {f['js']['0.99']:.4f} | {f['coverage']:.3f} [{low:.3f}, {high:.3f}] |"
    )


def plots(evidence: Sequence[Tensor], settings: Sequence[Setting]) -> dict[str, str]:
    """Return bound.svg (each pair's divergence against its bound U) and divergence.svg (their distribution)."""
    bound = Plot("divergence against bound", "U = min(U_emb, U_logit)", "JS", y=(0, LARGEST_JS))
    spread = Plot("divergences", "JS", "share of pairs up to that JS", x=(0, LARGEST_JS), y=(0, 1))
    rng = random.Random(0)
    largest = 0.0
    for pairs, setting in zip(evidence, settings, strict=True):
        columns = {name: pairs[:, i].double() for i, name in enumerate(COLUMNS)}
        u = bounds(columns["distance"], columns["margin"], setting.constants).tolist()
        js = columns["js"].tolist()
        largest = max(largest, float(setting.constants.tau))
        shown = rng.sample(range(len(js)), min(SHOWN // len(settings), len(js)))
        label = f"T = {setting.temperature:g}"
        bound.points([u[i] for i in shown], [js[i] for i in shown], label, radius=1.5)
        for kind, flag in (("uniform", 0.0), ("drafted", 1.0)):
            own = columns["js"][columns["drafted"] == flag].sort().values.tolist()
            if own:
                steps = [own[round(q / 100 * (len(own) - 1))] for q in range(101)]
                spread.line(steps, [q / 100 for q in range(101)], f"{label}, {kind}")
    bound.line([0, LARGEST_JS], [0, LARGEST_JS], "JS = U", dashed=True)
    bound.x = (0.0, max(largest, LARGEST_JS) * 1.1)
    return {"bound.svg": bound.svg(), "divergence.svg": spread.svg()}
