"""Token-level rules and draft trees on the embedded pair, beside the target alone, in one run.

    python scripts/bench_tokens.py --temperature 0.6 [--problems 300] [--few 100] [--out runs/tokens.jsonl]

``--show FILE...`` prints tables of what is there and writes docs/tokens.json; see survey.py.

The cost model says what the same passes would come to where a pass costs what it takes to read the
weights, however many tokens are in it: tokens / (target passes + 0.05 draft passes). The tiny
target's pass over a tree costs several times that over a token, and no trick of drafting changes that.
"""

from __future__ import annotations

import sys
from pathlib import Path

from survey import LENGTHS, QUALITY_AND_SPEED, Survey

SEED = 20261208  # of the problems
CHAIN = ("draft_length=5",)
TREE = ("tree=dynamic",)
MAIN = {
    "plain": ("draft=none",),
    "lossless, chain of 5": CHAIN,
    "lossless, dynamic tree": TREE,
    "typical, chain of 5": ("accept=typical", *CHAIN),
    "typical, dynamic tree": ("accept=typical", *TREE),
    "top-k/delta, chain of 5": ("accept=topk_delta", *CHAIN),
    "top-k/delta, dynamic tree": ("accept=topk_delta", *TREE),
    "fuzzy (reverse KL 0.4), chain of 5": ("accept=fuzzy", *CHAIN),
    "fuzzy (reverse KL 0.4), dynamic tree": ("accept=fuzzy", *TREE),
}
FEW = {
    "lossless, chain of 10": ("draft_length=10",),
    "lossless, static tree": ("tree=static",),
    "lossless, sampled tree": ("tree=sampled",),
    "lossless, dynamic tree of 12": (*TREE, "tree_nodes=12", "tree_top_k=4"),
    "lossless, adaptive chain to 10": ("draft_length=10", "adaptive=true"),
    "fuzzy (JS 0.1), chain of 5": ("accept=fuzzy", "divergence=js", "threshold=0.1", *CHAIN),
    "fuzzy (TV 0.3), chain of 5": ("accept=fuzzy", "divergence=tv", "threshold=0.3", *CHAIN),
    "top-k/delta in the thinking, chain of 5": (
        *("accept=topk_delta", "only_in_think=true"),
        *CHAIN,
    ),
}

TOKENS = Survey(
    main=MAIN,
    few=FEW,
    columns=(
        *QUALITY_AND_SPEED,
        *LENGTHS,
        ("cost model", lambda r: f"{r['cost_model']:.2f}x"),
        ("outside passes", lambda r: f"{100 * r['overhead']:.1f} %"),
    ),
    seed=SEED,
    json=Path("docs/tokens.json"),
    common=("split=token", "accept=lossless"),
)

if __name__ == "__main__":
    sys.exit(TOKENS.main_program(__doc__))
