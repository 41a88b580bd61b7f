"""Drafting without a draft model on the embedded pair's ordinary problems: speed against the target alone.

    python scripts/bench_retrieval.py token --temperature 0 [--problems 100] [--out runs/retrieval-token.jsonl]
    python scripts/bench_retrieval.py token --temperature 1
    python scripts/bench_retrieval.py steps --temperature 0.6 [--out runs/retrieval-steps.jsonl]

``token``: every drafter from context or corpus with the lossless rule, in one run. ``steps``: the draft
model's steps under accept=logprob, with the target's own steps written plainly, by retrieval inside
them (nested), by the draft model, and with salvage. ``--show FILE...`` prints tables of what is there
and writes docs/retrieval-GROUP.json; see survey.py. Tokens a pass and the cost model stand beside
seconds, for a pass of this target costs no more than what drafting takes.
"""

from __future__ import annotations

from pathlib import Path

from survey import LENGTHS, QUALITY_AND_SPEED, Survey, choose, told

SEED = 20261216  # of the problems: in no corpus, and no training has seen them
CONTEXT = ("prompt_lookup", "suffix", "pld_plus", "adapld", "token_recycling", "logitspec")
CORPUS = ("rest", "dresd")
PLAIN = {"plain": ("draft=none",)}
STEPS = ("accept=logprob",)
STRICT = (*STEPS, "accept.threshold=-2")  # leaves the target more to write
STORE = "embedded/sparse-tiny"
GROUPS = {
    "token": PLAIN
    | {name: (f"draft={name}",) for name in (*CONTEXT, *CORPUS, "hybrid")}
    | {
        "suffix, with a corpus": ("draft=suffix", f"datastore={STORE}"),
        "lm, chain of 5": ("tree=chain", "draft_length=5"),
    },
    "steps": PLAIN
    | {
        "steps alone": STEPS,
        **{f"nested={name}": (*STEPS, f"nested={name}") for name in ("suffix", *CORPUS, "lm")},
        "salvage": (*STEPS, "salvage=true"),
        "salvage, nested=rest": (*STEPS, "salvage=true", "nested=rest"),
        "salvage, nested=lm": (*STEPS, "salvage=true", "nested=lm"),
        "strict, steps alone": STRICT,
        "strict, nested=rest": (*STRICT, "nested=rest"),
        "strict, nested=lm": (*STRICT, "nested=lm"),
    },
}


def survey(group: str) -> Survey:
    return Survey(
        main=GROUPS[group],
        few={},
        columns=(
            *QUALITY_AND_SPEED,
            *LENGTHS,
            ("cost model", told("cost_model", ".2f")),
            ("kept", lambda row: f"{100 * row['acceptance']:.0f} %"),
        ),
        seed=SEED,
        json=Path(f"docs/retrieval-{group}.json"),
        common=("split=token", "accept=lossless") if group == "token" else (),
    )


if __name__ == "__main__":
    choose(GROUPS, "group", survey, __doc__)
