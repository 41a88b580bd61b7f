"""ARC-Decode on the embedded pair: thresholds, pruning and what it moves, beside other relaxed rules.

    python scripts/bench_arc.py --temperature 1.0 [--problems 200] [--few 60] [--out runs/arc.jsonl]

``--show FILE...`` prints tables of what is there and writes docs/arc.json; see survey.py. Beside speed
and quality stands the measured divergence of the next step (nats, at most 0.693): of all kept
tokens, and of those that were not the target's likeliest.
"""

from __future__ import annotations

import sys
from pathlib import Path

from survey import LENGTHS, QUALITY_AND_SPEED, Line, Survey, told, with_interval

SEED = 20261209  # of the problems
CHAIN = ("draft_length=5",)
TREE = ("tree=dynamic",)
HEAD = ("draft=eagle3",)  # a dynamic tree
PRUNE = ("prune=entropy", "eps=0.05", "lambda=1.0")
MAIN = {
    "plain": ("draft=none",),
    "lossless, chain of 5": CHAIN,
    "lossless, dynamic tree": TREE,
    # the paper's table 4: prune only, LTS only, both
    "EAGLE-3, lossless": HEAD,
    "EAGLE-3, prune only": (*HEAD, "accept=arc", "theta=2", *PRUNE),
    **{
        f"EAGLE-3, {name}, theta {theta}": (*HEAD, "accept=arc", f"theta={theta}", *more)
        for theta in (0.3, 0.5, 0.7, 0.9)
        for name, more in (("LTS only", ()), ("both", PRUNE))
    },
    "prune only, dynamic tree": (*TREE, "accept=arc", "theta=2", *PRUNE),
    **{
        f"both, theta {theta}, dynamic tree": (*TREE, "accept=arc", f"theta={theta}", *PRUNE)
        for theta in (0.3, 0.7, 0.9)
    },
    # figures 4 and 5
    **{
        f"ARC, theta {theta}, chain of 5": ("accept=arc", f"theta={theta}", *CHAIN)
        for theta in (0.3, 0.5, 0.7, 0.9)
    },
    "fuzzy (reverse KL 0.4), chain of 5": ("accept=fuzzy", *CHAIN),
    "typical, chain of 5": ("accept=typical", *CHAIN),
    "top-k/delta, chain of 5": ("accept=topk_delta", *CHAIN),
}
FEW = {
    "LTS only, theta 0.3, dynamic tree": ("accept=arc", "theta=0.3", *TREE),
    "prune only, leaf 0.01": ("accept=arc", "theta=2", *PRUNE, "leaf=0.01", *TREE),
    **{
        f"pruned by {rule}, lossless": ("accept=arc", "theta=2", f"prune={rule}", *TREE)
        for rule in ("depth", "depth_exp", "accum_prob")
    },
    "ARC, theta 0.99, chain of 5": ("accept=arc", "theta=0.99", *CHAIN),
    "ARC, bucketed, theta 0.3": ("accept=arc", "theta=0.3", "bucketed=true", *CHAIN),
    "ARC, theta 0.3, lossless after": ("accept=arc", "theta=0.3", "resume=false", *CHAIN),
    "ARC certified, js 0.05": ("accept=arc_certified", "js=0.05", *CHAIN),
}


# the drafter's own lossless rule, which the aim of 1.3x is about
RIVALS = {
    **{name: "EAGLE-3, lossless" for name in MAIN if name.startswith("EAGLE-3,")},
    **{name: "lossless, dynamic tree" for name in (*MAIN, *FEW) if "tree" in name},
    **{name: "lossless, chain of 5" for name in (*MAIN, *FEW) if "chain" in name},
}


def over(row: Line) -> str:
    return with_interval("speedup", ".2f")(row["over"]) if "over" in row else ""


def covered(row: Line) -> str:
    return "" if row["coverage"] is None else with_interval("coverage", ".2f")(row)


ARC = Survey(
    main=MAIN,
    few=FEW,
    columns=(
        *QUALITY_AND_SPEED,
        ("over its lossless rule", over),
        *LENGTHS,
        ("cost model", told("cost_model", ".2f")),
        ("not likeliest", told("other_share", ".3f")),
        ("mean JS", told("js_mean", ".4f")),
        ("of these", told("js_other", ".3f")),
        ("JS <= U", covered),
    ),
    seed=SEED,
    json=Path("docs/arc.json"),
    common=("split=token", "accept=lossless"),
    rivals=RIVALS,
    audit=True,
)

if __name__ == "__main__":
    sys.exit(ARC.main_program(__doc__))
