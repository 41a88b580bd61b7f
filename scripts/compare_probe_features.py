"""Compare probes of a target on the same samples: layers, pooling, perceptron, loss, number of problems.

    python scripts/compare_probe_features.py --samples runs/doubting-samples/target [--out runs/features.json]

It trains each probe on samples that train_probe has drawn from the embedded world (role=target, pooling=[mean,max,last], cluster=oracle) and reports
how well its score tells right drafted steps from wrong ones: after any text, where a mistake stands until it is taken back, and
after right steps only. Seven turns hold every problem out once, and the figures cover all problems.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from exact_ratio import posed, right_steps
from script_kit import check_known, markdown, parser, read
from train_tiny_probes import TRAINING

from semspec import world
from semspec.errors import UserError
from semspec.probes.features import Features
from semspec.storage.files import write_json
from semspec.training.probes import metrics
from semspec.training.probes.compose import build
from semspec.training.probes.contexts import FILE, Chain, read_chains
from semspec.training.probes.dataset import PATTERN, Rows, divided
from semspec.training.probes.judging import told_apart, truths
from semspec.training.probes.pipeline import share_of_chains
from semspec.training.probes.sample import FOLDER
from semspec.training.probes.semantic import cluster_samples
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import Sample, read_samples
from semspec.training.probes.train import predict, train

HEADINGS = (
    "layers, pooling, perceptron", "Spearman", "AUROC at one half", "AUROC right / wrong [95 %]", "after right steps only [95 %]",
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A way to train a probe."""

    label: str
    pooling: tuple[str, ...] = ("mean",)
    layers: tuple[int, ...] = ()  # all
    hidden: tuple[int, int] = (32, 16)
    loss: str = "bce"
    share: float = 1.0  # of the training problems
    logprobs: bool = False
    truth: bool = (
        False  # learns whether drafted steps are right, instead of the semantic probability
    )


def variants(layers: int) -> list[Variant]:
    """Return the variants to compare, for a target with this many layers."""
    quarters = [layers * part // 4 for part in (1, 2, 3)]
    return [
        Variant("all, mean, 32 - 16"),
        Variant("all, mean, 32 - 16, half of the problems", share=0.5),
        Variant("all, mean, 32 - 16, a quarter of the problems", share=0.25),
        Variant("all, mean, 32 - 16, loss=mse", loss="mse"),
        Variant("all, mean, 32 - 16, trained to tell right from wrong", truth=True),
        Variant(f"layer {layers} (the last), mean, 32 - 16", layers=(layers,)),
        *(Variant(f"layer {n}, mean, 32 - 16", layers=(n,)) for n in quarters),
        Variant("all, last token, 32 - 16", pooling=("last",)),
        Variant("all, maximum, 32 - 16", pooling=("max",)),
        Variant("all, mean, 256 - 64", hidden=(256, 64)),
        Variant("log-probabilities alone, 32 - 16", pooling=(), logprobs=True),
        Variant("`features=plus`, 32 - 16", pooling=("mean", "max", "last"), logprobs=True),
    ]


class Samples:
    """A folder of train_probe, with its semantic probabilities and which samples are right."""

    def __init__(self, folder: Path) -> None:
        chains = read_chains(folder / FILE)
        if not chains:
            raise UserError(f"{folder} holds no {FILE}: name the folder= of train_probe")
        begun = read(folder / "config.json")
        self.pooling, self.into = begun["pooling"], folder / FOLDER
        self.layers, self.width = begun["facts"]["layers"], begun["facts"]["width"]
        self.config = build(["draft=tiny", "cluster=oracle", f"folder={folder}", *TRAINING])
        self.semantic = cluster_samples(
            self.config, chains, lambda: read_samples(self.into), folder
        )
        strict = truths(chains, read_samples(self.into))
        self.spotless = {context for context, right in strict.items() if not np.isnan(right[0])}
        self.right = _right_anywhere(chains, read_samples(self.into))

    def rows(self, variant: Variant, contexts: Collection[str] | None = None) -> Rows:
        """Return all rows, or those of some contexts, with the features of a variant."""
        features = Features(variant.pooling, variant.layers, variant.logprobs)
        size = features.size(self.layers, self.width)
        samples = (s for s in read_samples(self.into) if contexts is None or s.context in contexts)
        return Rows(
            self.into, samples, self.semantic, self.pooling, features, size, self.config.memory,
            self.right,
        )  # fmt: skip


def _right_anywhere(chains: Sequence[Chain], samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Return, by context, 1 for each sample that is right there and 0 for any other."""
    by_id, found = {chain.id: chain for chain in chains}, dict[str, list[float]]()
    for name, members in groupby(samples, key=lambda sample: sample.context):
        group = list(members)
        chain = by_id[group[0].chain]
        problem = posed(chain)
        means = [world.meaning(problem, sample.text) for sample in group]
        found[name] = [float(x) for x in right_steps(problem, chain.texts[: group[0].cut], means)]
    return found


def held_out(
    rows: Rows, variant: Variant, config: ProbeConfig, turns: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield the drafted steps that each turn holds out, with their scores."""
    config = replace(config, hidden=list(variant.hidden), loss=variant.loss)
    if variant.truth:
        assert rows.right is not None
        rows.target[~rows.own] = rows.target.new_tensor(rows.right[~rows.own])
    for turn in range(turns):
        index = divided(rows, config.train_seed, turn)
        training, validation = index["train"], index["validation"]
        if variant.truth:
            training, validation = ([i for i in part if not rows.own[i]] for part in (training, validation))  # fmt: skip
        training = share_of_chains(training, rows.chains, variant.share, config.train_seed)
        test = [i for i in index["test"] if not rows.own[i]]
        yield test, predict(train(rows, training, validation, config), rows, test)


def figures(
    rows: Rows, test: Sequence[int], score: np.ndarray, semantic: np.ndarray, spotless: set[str]
) -> dict[str, Any]:
    """Return how well a score orders drafted steps: by semantic probability, and right above wrong ones."""
    assert rows.right is not None
    right, groups = rows.right[test], [rows.chains[i] for i in test]
    some = [at for at, i in enumerate(test) if rows.contexts[i] in spotless]
    return {
        "spearman": metrics.spearman(score, semantic),
        "auroc_half": metrics.auroc(score, semantic),
        **told_apart(score, right, groups),
        "spotless": told_apart(score[some], right[some], [groups[at] for at in some]),
    }


def compared(samples: Samples, turns: int, only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Train each variant and yield its figures; yield those of the lowest log-probability last."""
    known = {variant.label: variant for variant in variants(samples.layers)}
    check_known(only, known)
    beside: dict[str, Any] = {}
    for variant in (known[label] for label in only or known):
        began, rows = time.process_time(), samples.rows(variant)
        semantic = rows.target.numpy().copy()
        parts = list(held_out(rows, variant, samples.config, turns))
        test = [i for part, _ in parts for i in part]
        score = np.concatenate([scores for _, scores in parts])
        found = figures(rows, test, score, semantic[test], samples.spotless)
        seconds = time.process_time() - began
        yield asdict(variant) | found | {"cpu_seconds": round(seconds, 1)}
        beside = figures(rows, test, rows.lowest[test], semantic[test], samples.spotless)
    yield {"label": "*lowest log-probability, no training*", **beside}


def line(found: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    learned = "" if found.get("truth") else f"{found['spearman']:.3f}"
    half = "" if found.get("truth") else f"{found['auroc_half']:.3f}"
    told = [
        f"{one['auroc']:.3f} [{one['interval'][0]:.3f}, {one['interval'][1]:.3f}]"
        for one in (found, found["spotless"])
    ]
    return [found["label"], learned, half, *told]


def main() -> int:
    a = parser(
        __doc__,
        samples=(Path, "the folder of train_probe"),
        turns=(len(PATTERN), "so many sevenths of the problems are held out, one after the other"),
        out=("", "a JSON file for the figures"),
        only=([], "labels of rows of the table"),
    ).parse_args()
    if not 1 <= a.turns <= len(PATTERN):
        raise UserError(f"--turns {a.turns}: give 1 to {len(PATTERN)}")
    found = []
    for one in compared(Samples(a.samples), a.turns, a.only):
        found.append(one)
        print(f"{one['label']}: {one['auroc']:.3f}", file=sys.stderr, flush=True)
        if a.out:
            write_json(Path(a.out), {"samples": str(a.samples), "turns": a.turns, "rows": found})
    print("\n".join(markdown(HEADINGS, [line(one) for one in found])))
    every, some = found[-1], found[-1]["spotless"]
    print(
        f"\n{every['wrong']:,} of {every['steps']:,} drafted steps are wrong; after right steps only, {some['wrong']:,} of {some['steps']:,}."
    )
    return 0


if __name__ == "__main__":
    from semspec.cli.command import ends_in_one_line

    ends_in_one_line(lambda: sys.exit(main()))
