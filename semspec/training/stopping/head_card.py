"""The card of a head for ``stop=probe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semspec.training.probes.card import common, pooled

CARD = """\
---
library_name: semspec
license: apache-2.0
base_model: {base_model}
tags: [semspec, speculative-decoding, stop_probe, early-exit]
---
# {name}

A head on the states of `{model}` that predicts, at the end of a reasoning step, how probable it is that an answer forced
now would be right. `stop=probe` ends the thinking with it. Made by `python -m semspec.calibrate_stop stop=probe train=true`.
The head alone guarantees nothing: `stop.risk=` takes its threshold from a calibration (docs/thinking_less.md).

| | |
|---|---|
| model | `{model}`, {layers} layers, width {width}{revision} |
| tokenizer | `{tokenizer}` |
| steps | split={split} |
| temperature | {sampled:g} |
| forced answer | the thinking is closed with `{words}`, the answer begins with `{answer}` |
| features | {features}: {inputs:,} numbers |
| perceptron | {inputs:,} - {hidden} - 1, {activation}, loss {loss} |
| data | {problems:,} problems of {benchmark}, solved with accept={rule}; the answer was right at {right:.0%} of the {rows:,} ends of steps |

## Measured on held-out problems

| | train | validation | test |
|---|---|---|---|
| problems | {problems_of} |
| ends of steps | {rows_of} |
| answer right | {right_of} |

AUROC on the test problems: **{auroc:.3f}** [{low:.3f}, {high:.3f}] (95 %, bootstrap over problems); by the length of the thinking so
far alone: {length:.3f}. Expected calibration error: {ece:.3f}.
"""
WHERE = {"step": "the step's tokens", "closing": "the tokens that close the thinking and begin the answer"}  # fmt: skip


def card(name: str, config: Mapping[str, Any]) -> str:
    """Return README.md."""
    features, figures, data = config["features"], config["metrics"], config["data"]
    training, test = config["training"], figures["test"]["all"]
    low, high = figures["auroc_interval"]

    def each(column: str, shape: str) -> str:
        return " | ".join(format(value, shape) for value in training[column].values())

    return CARD.format(
        **common(config),
        name=name,
        **{k: config["stop"][k] or "nothing" for k in ("words", "answer")},
        features=pooled(features, WHERE[features["span"]]),
        **{k: data[k] for k in ("problems", "rows", "right", "rule")},
        benchmark=data["benchmark"]["name"],
        problems_of=each("problems", ","),
        rows_of=each("rows", ","),
        right_of=each("right", ".1%"),
        low=low,
        high=high,
        length=figures["auroc_of_length"],
        **{k: test[k] for k in ("auroc", "ece")},
    )
