"""A router's label: how much better the target's own steps are than a drafted one (Arbitrage, definition 4.1).

    advantage  D = mean score of the target's steps in this context - score of the drafted step
    label      y = 1 if D > margin

The paper scores steps by a process-reward model. *Here* a step's score is the share of the target's sampled steps that
mean the same, taken from the clusters, so no third model is needed. A step of the target is compared only with the
target's other steps. So D is an unbiased estimate of sum_c p_c^2 - p_c(drafted), where p is the target's distribution
over meanings: if the target itself would say many different things, it has little advantage over any step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from semspec.artifacts.router import Router, named
from semspec.deferred import Tensor
from semspec.errors import UserError
from semspec.storage.files import parse, whole_lines
from semspec.training.probes.dataset import Rows, one_sided
from semspec.training.probes.metrics import spearman
from semspec.training.probes.settings import ProbeConfig
from semspec.training.probes.shards import Sample
from semspec.training.probes.stages import facts_of


def advantage(clusters: Sequence[int], own: Sequence[bool]) -> list[float]:
    """Return the target's advantage over each own (drafted) sample; the others are the target's, at least two."""
    counts = Counter(c for c, mine in zip(clusters, own, strict=True) if not mine)
    total = counts.total()
    theirs = sum(n * (n - 1) for n in counts.values()) / (total * (total - 1))
    return [theirs - counts[c] / total for c, mine in zip(clusters, own, strict=True) if mine]


def advantages(file: Path, samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Return for each context the target's advantage over its drafted steps, from a file of clusters."""
    lines = (value for line in whole_lines(file) if (value := parse(line)) is not None)
    clusters: Mapping[str, list[int]] = {line["context"]: line["clusters"] for line in lines}
    return {
        name: advantage(clusters[name], [sample.writer == "own" for sample in members])
        for name, members in groupby(samples, key=lambda sample: sample.context)
    }


def drafted(samples: Iterable[Sample]) -> Iterable[Sample]:
    """Yield the drafted steps, which a router judges."""
    return (sample for sample in samples if sample.writer == "own")


def mark(rows: Rows, margin: float) -> None:
    """Replace the rows' targets, which are advantages, by labels; keep the advantages in ``rows.advantage``."""
    rows.advantage, rows.target = rows.target, (rows.target > margin).float()


def check_labels(rows: Rows, index: Mapping[str, Sequence[int]], margin: float) -> None:
    """Raise UserError if all labels of a part are equal."""
    if part := one_sided(rows, index):
        raise UserError(
            f"the target's step is better by more than margin={margin:g} in all cases or in"
            f" none ({part}): give more problems=, or another margin="
        )


def router(
    about: Mapping[str, Any],
    tensors: dict[str, Tensor],
    config: ProbeConfig,
    rows: Rows,
    score: np.ndarray,
    test: Sequence[int],
) -> Router:
    """Return the artifact of a perceptron trained on ``mark``-ed rows; ``about`` is a probe's config."""
    assert rows.advantage is not None, "the rows are marked"
    measured = {
        # the paper's figure: does the score order steps by advantage?
        "spearman": spearman(score, rows.advantage[list(test)].numpy()),
        "better": float(rows.target.mean()),  # share of the drafted steps
    }
    config_of = {
        **about,
        "kind": Router.kind,
        "version": Router.version,
        "target": named(facts_of(config.model)),
        "advantage": {"margin": config.margin},
        "metrics": about["metrics"] | {"advantage": measured},
    }
    return Router(config_of, tensors, name=f"router-{config.draft.model.path.rpartition('/')[2]}")
