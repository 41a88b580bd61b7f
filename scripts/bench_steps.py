"""Step-level rules on the embedded pair: what each is worth beside the target alone, in one run.

    python scripts/bench_steps.py --temperature 0.6 [--problems 500] [--few 150] [--out runs/steps.jsonl]

``--show FILE...`` prints tables of what is there and writes docs/steps.json; see survey.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from survey import QUALITY_AND_SPEED, Survey

SEED = 20261207  # of the problems: neither trained, calibrated nor evaluated on before
PLUS = ("accept=semantic_plus",)
MAIN = {
    "plain": ("draft=none",),
    "semantic (paper)": ("accept=semantic",),
    "semantic, our features": ("accept=semantic", "probe=plus"),
    "semantic, our features, salvage, nested": (
        *("accept=semantic", "probe=plus"),
        *("salvage=true", "nested=lm"),
    ),
    "semantic_plus": PLUS,
    "semantic_plus, salvage, nested": (*PLUS, "salvage=true", "nested=lm"),
    "random, rate 0.96": ("accept=random", "accept.rate=0.96"),  # as much as semantic accepts
    "random, rate 0.88": ("accept=random", "accept.rate=0.88"),  # as much as with our features
    "logprob -4": ("accept=logprob",),
    "logprob -4, salvage, nested": ("accept=logprob", "salvage=true", "nested=lm"),
}
FEW = {
    "semantic, last layer": ("accept=semantic", "probe=last_layer"),
    "semantic, probes of residues": (
        "accept=semantic",
        "accept.target_probe=embedded/probe-tiny-target-residues",
        "accept.draft_probe=embedded/probe-tiny-draft-residues",
    ),
    "semantic, probes of weekdays": (
        "accept=semantic",
        "accept.target_probe=embedded/probe-tiny-target-weekdays",
        "accept.draft_probe=embedded/probe-tiny-draft-weekdays",
    ),
    "threshold on the paper's features": ("accept=semantic_plus", "features=paper"),
    "semantic_plus, threshold 0.1": (*PLUS, "threshold=0.1"),
    "semantic_plus, salvage": (*PLUS, "salvage=true"),
    "semantic_plus, nested": (*PLUS, "nested=lm"),
    "semantic_plus, ahead": (*PLUS, "ahead=true"),
    "semantic_plus, adaptive to 4": (*PLUS, "adaptive=true", "draft_length=4"),
    "semantic_plus, 2 steps": (*PLUS, "draft_length=2"),
    "semantic_plus, all four": (
        *PLUS,
        *("salvage=true", "nested=lm", "ahead=true", "adaptive=true", "draft_length=4"),
    ),
    "rsd 0.5": ("accept=rsd", "threshold=0.5"),
    "semantic_risk 0.02": ("accept=semantic_risk", "risk=0.02"),
    "semantic_risk 0.05": ("accept=semantic_risk", "risk=0.05"),
    "semantic_risk 0.10": ("accept=semantic_risk", "risk=0.10"),
    "random (paper)": ("accept=random",),
    "random, rate 0.9": ("accept=random", "accept.rate=0.9"),
    "logprob -2": ("accept=logprob", "threshold=-2"),
    "logprob -8": ("accept=logprob", "threshold=-8"),
    "logprob -14": ("accept=logprob", "threshold=-14"),
    "token level, lossless": ("accept=lossless", "split=token", "draft_length=5"),
    "oracle": ("accept=oracle",),
}
# what an option is worth is told over the rule without it, on the problems that both have solved
RIVALS = {name: "semantic_plus" for name in (*MAIN, *FEW) if name.startswith("semantic_plus, ")}
RIVALS |= {"logprob -4, salvage, nested": "logprob -4"}

STEPS = Survey(
    main=MAIN,
    few=FEW,
    rivals=RIVALS,
    columns=(
        *QUALITY_AND_SPEED,
        ("median", lambda r: f"{r['speedup_median']:.2f}x"),
        ("by target", lambda r: f"{100 * r['target_share']:.0f} %"),
        ("accepted", lambda r: f"{100 * r['acceptance']:.0f} %"),
    ),
    seed=SEED,
    json=Path("docs/steps.json"),
)

if __name__ == "__main__":
    sys.exit(STEPS.main_program(__doc__))
