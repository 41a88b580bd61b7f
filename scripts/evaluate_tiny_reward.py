"""Measure the embedded reward model on fresh steps of the draft and write its model card.

    python scripts/evaluate_tiny_reward.py [--problems 400] [--models hub_artifacts]

The draft alone solves problems that no training has seen. Every step up to the first error is
scored as ``accept=rsd`` scores it (our engine, the rule's own head) and labelled by the oracle.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from script_kit import HUB, markdown, parser, read
from sklearn.metrics import brier_score_loss, roc_auc_score
from tiny_reward_data import Batches, Row, sample

from semspec.engines.hf import Hf
from semspec.models.text import Text
from semspec.protocols import Engine
from semspec.results.metrics import wilson
from semspec.rules._score import ScoreHead, read_score_head
from semspec.rules.rsd import Rsd
from semspec.storage.files import write_json
from semspec.types import LAST_STATES, Context, Query, Sampling

SEED = 20261131  # of the problems
TEMPERATURES = (0.6, 1.0)
PROBLEMS = 400


def rewards(engine: Engine, head: ScoreHead, batches: Batches, row: Row) -> list[float]:
    """Return the reward of each step of a row, from one pass."""
    ids, ends = batches.ids(row)
    context = Context(0, ids[:1])
    query = Query(
        "reward", context, Sampling(), random.Random(), tokens=ids[1:], reads=(LAST_STATES,)
    )
    (answer,) = engine.answer([query])
    engine.forget(context)
    return head(answer[LAST_STATES][ends, 0]).tolist()


def figures(rows: list[Row], found: list[list[float]], threshold: float) -> dict[str, Any]:
    truth = np.array([label for row in rows for label in row.labels])
    reward = np.array([score for scores in found for score in scores])
    accepted = reward >= threshold

    def kept(of: np.ndarray) -> list[float]:
        """Return the accepted share, and its 95 % interval."""
        count = int((accepted & of).sum())
        return [count / int(of.sum()), *wilson(count, int(of.sum()))]

    return {
        "problems": len(rows),
        "steps": len(truth),
        "steps_right": int(truth.sum()) / len(truth),
        "auroc": float(roc_auc_score(truth, reward)),
        "brier": float(brier_score_loss(truth, reward)),
        "threshold": threshold,
        "right_accepted": kept(truth),
        "wrong_accepted": kept(~truth),
    }


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-classification
tags: [semspec, reward-model, tiny]
---
# tiny-reward

The process-reward model of semspec's embedded pair (`accept=rsd`): at the end of a step, the
probability that the step is true and may come next. Llama architecture, {layers} layers, width 128,
one label (sigmoid), bfloat16, context 2,048. Its backbone is `tiny-draft`'s, grown; trained by
`scripts/train_tiny_reward.py` ({minutes:.0f} minutes on a CPU thread) on true, corrupted and sampled
solutions of the embedded world, labelled by its oracle. It knows nothing else.
Wrong steps counted seven times in training, about as much as all right ones together: a reward of 0.5
is even odds where right and wrong are as frequent, and lower than the share of right steps among the draft's.

## Measured

Steps of fresh problems (seed {seed}) as `tiny-draft` writes them, each solution up to its first error:

{table}

Figures by `scripts/evaluate_tiny_reward.py`; `evaluation.json` has them all.
"""
SHARE = "{:.3f} [{:.3f}, {:.3f}]"
LINES = {
    "steps": lambda f: f"{f['steps']:,}",
    "of these right": lambda f: f"{f['steps_right']:.3f}",
    "AUROC": lambda f: f"{f['auroc']:.3f}",
    "Brier score": lambda f: f"{f['brier']:.3f}",
    "right steps accepted at 0.7 [95 %]": lambda f: SHARE.format(*f["right_accepted"]),
    "wrong steps accepted at 0.7 [95 %]": lambda f: SHARE.format(*f["wrong_accepted"]),
}


def main() -> None:
    a = parser(__doc__, problems=PROBLEMS, models=HUB, draft=HUB / "tiny-draft").parse_args()
    folder = a.models / "tiny-reward"
    engine, head = Hf().load(str(folder)), read_score_head(folder)
    batches = Batches(Text(str(folder)), [], 0)
    found = {}
    for temperature in TEMPERATURES:
        rows = sample(a.draft, temperature, a.problems, SEED)
        scored = [rewards(engine, head, batches, row) for row in rows]
        found[f"T={temperature:g}"] = figures(rows, scored, Rsd().threshold)
    write_json(folder / "evaluation.json", found)
    training = read(folder / "training.json")
    lines = [[name, *map(written, found.values())] for name, written in LINES.items()]
    card = CARD.format(
        layers=read(folder / "config.json")["num_hidden_layers"],
        minutes=(training["seconds"] + training["seconds_sampling"]) / 60,
        seed=SEED,
        table="\n".join(markdown(["", *found], lines)),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
