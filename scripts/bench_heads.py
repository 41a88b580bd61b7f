"""Drafts by heads on the embedded target, beside the draft model's and the target alone, in one run.

    python scripts/bench_heads.py --temperature 0.6 [--problems 300] [--few 100] [--out runs/heads.jsonl]

``--show FILE...`` prints tables of what is there and writes docs/heads.json; see survey.py. A head costs
the target no pass and is no model of its own: what it takes is in the seconds, not in the passes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from survey import LENGTHS, QUALITY_AND_SPEED, Survey

SEED = 20261213  # of the problems: no training has seen them
CHAIN = ("tree=chain", "draft_length=5")
SMALL = ("tree_nodes=12", "tree_top_k=4")
MAIN = {
    "plain": ("draft=none",),
    "lm, chain of 5": CHAIN,
    "eagle3, chain of 5": ("draft=eagle3", *CHAIN),
    "eagle3, dynamic tree of 12": ("draft=eagle3", *SMALL),
    "medusa, static tree of 12": ("draft=medusa", *SMALL),
}
FEW = {
    "lm, dynamic tree": ("tree=dynamic",),
    "eagle3, chain of 8": ("draft=eagle3", "tree=chain", "draft_length=8"),
    "eagle3, dynamic tree": ("draft=eagle3",),
    "medusa, chain": ("draft=medusa", *CHAIN),
    "medusa, static tree": ("draft=medusa",),
}

HEADS = Survey(
    main=MAIN,
    few=FEW,
    columns=(
        *QUALITY_AND_SPEED,
        *LENGTHS,
        ("kept", lambda r: f"{100 * r['acceptance']:.0f} %"),
    ),
    seed=SEED,
    json=Path("docs/heads.json"),
    common=("split=token", "accept=lossless"),
)

if __name__ == "__main__":
    sys.exit(HEADS.main_program(__doc__))
