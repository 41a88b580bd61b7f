"""Measure the tiny entailment model against the meaning oracle and write its card.

    python scripts/evaluate_tiny_nli.py [--contexts 200] [--samples 20] [--models hub_artifacts]

It uses fresh contexts (another seed) and next steps that the embedded pair writes, each model at
T = 0.6 and at T = 1.0. "All pairs" are all pairs of steps of one context, as semantic probabilities
see them. Many pairs are identical texts, which need no model, so "texts" counts every
different text of a context once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from script_kit import HUB, markdown, parser, read
from tiny_nli_data import contexts, sample

from semspec.artifacts.inspection import seal
from semspec.probes.cluster import Nli, Oracle, agreement, normal
from semspec.storage.files import write_json

SEED = 20261124  # seed of contexts and samples; training and its error analysis used others
TEMPERATURES = (0.6, 1.0)
CONTEXTS, SAMPLES = 200, 20
SOURCES = ("tiny-target", "tiny-draft")


def evaluate(nli: Nli, texts: Sequence[str], steps: Sequence[Sequence[str]]) -> dict[str, Any]:
    items = list(zip(texts, steps, strict=True))
    started = time.perf_counter()
    found = list(nli.cluster_many(items))
    seconds = time.perf_counter() - started
    truth = list(Oracle().cluster_many(items))
    once = [list({normal(s): i for i, s in enumerate(several)}.values()) for several in steps]

    def only(clusters: list[list[int]]) -> list[list[int]]:
        return [[c[i] for i in keep] for c, keep in zip(clusters, once, strict=True)]

    return {
        "all_pairs": asdict(agreement(found, truth)),
        "texts": asdict(agreement(only(found), only(truth))),
        "clusters_a_context": sum(max(c) + 1 for c in truth) / len(truth),
        "clusters_a_context_found": sum(max(c) + 1 for c in found) / len(found),
        "seconds": seconds,
    }


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-classification
tags: [semspec, natural-language-inference, tiny]
---
# tiny-nli

The entailment model of semspec's embedded task: it says whether two reasoning steps mean the same after
the same context, as `microsoft/deberta-v2-xlarge-mnli` does for other text (same three classes, in the same order).
DeBERTa-v2 architecture, {layers} layers, width {width}, {parameters:.2f} M parameters, bfloat16, inputs of
{longest} tokens. Trained from nothing on a CPU by `scripts/train_tiny_nli.py` ({minutes:.0f} minutes on
one core of a busy machine).

It reads `[CLS] context a [SEP] context b [SEP]` with the tokenizer of the embedded pair, and knows the two
kinds of problems that the pair knows and nothing else. Its relation is symmetric: *entailment* is the same
meaning, *contradiction* another claim about the same thing, *neutral* all else. Both steps are always whole;
what they leave of the {longest} tokens is the end of the context.

## Measured

Agreement with the meaning oracle, {contexts} fresh contexts x {samples} steps (seed {seed}) sampled from each
model; greedy clustering by entailment in both directions.

{table}

*Texts* counts each different text of a context once: pairs of the same text are agreed on by anyone.

Figures by `scripts/evaluate_tiny_nli.py`; `evaluation.json` has them all.
"""

ROWS = (
    ("pairs agreed on", "all_pairs", "accuracy"),
    ("precision", "all_pairs", "precision"),
    ("recall", "all_pairs", "recall"),
    ("F1", "all_pairs", "f1"),
    ("adjusted Rand index", "all_pairs", "adjusted_rand"),
    ("contexts clustered identically", "all_pairs", "identical"),
    ("mean error of semantic probability", "all_pairs", "probability_error"),
    ("texts: pairs agreed on", "texts", "accuracy"),
    ("texts: F1", "texts", "f1"),
)


def main() -> None:
    threads = torch.get_num_threads()
    nli = (HUB / "tiny-nli", "what is measured")
    options = parser(
        __doc__, models=HUB, nli=nli, contexts=CONTEXTS, samples=SAMPLES, threads=threads
    )
    options.add_argument("--steps", type=Path, help="keeps the sampled steps here, as JSON")
    a = options.parse_args()
    torch.set_num_threads(a.threads)
    texts = contexts(SEED, a.contexts)
    folder = a.nli
    found: dict[str, Any] = {}
    for source in SOURCES:
        for temperature in TEMPERATURES:
            name = f"{source}, T = {temperature:g}"
            kept = a.steps and a.steps / f"{source}-{temperature:g}.json"
            if kept and kept.exists():
                steps = read(kept)
            else:
                steps = sample(a.models / source, texts, a.samples, temperature, SEED)
                if kept:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_text(json.dumps(steps), encoding="utf-8")
            if not folder.exists():
                continue  # only the steps were wanted
            found[name] = evaluate(Nli(model=str(folder)), texts, steps)
            print(name, json.dumps(found[name]["all_pairs"]), flush=True)
    if not found:
        return
    write_json(folder / "evaluation.json", found)
    config = read(folder / "config.json")
    rows = [
        [label, *(f"{f[part][name]:.4f}" for f in found.values())] for label, part, name in ROWS
    ]
    with safe_open(folder / "model.safetensors", "pt") as weights:
        sizes = [weights.get_tensor(name).numel() for name in weights.keys()]  # noqa: SIM118
    card = CARD.format(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        longest=config["max_position_embeddings"],
        parameters=sum(sizes) / 1e6,
        minutes=read(folder / "training.json")["seconds"] / 60,
        contexts=a.contexts,
        samples=a.samples,
        seed=SEED,
        table="\n".join(markdown(["", *found], rows)),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    seal(folder)


if __name__ == "__main__":
    main()
