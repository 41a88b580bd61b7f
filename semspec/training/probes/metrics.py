"""Measure probes and simple baselines against sampled semantic probabilities."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from semspec.training.probes.dataset import Rows

BINS = 10
MAJORITY = 0.5  # semantic probability of a step that half the samples agree with
DRAWS = 300  # of the bootstrap
Figures = dict[str, Any]


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return the rank correlation, or None if one side is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import spearmanr  # type: ignore[import-untyped,unused-ignore] # with sklearn

    return float(spearmanr(a, b).statistic)


def auroc(score: np.ndarray, truth: np.ndarray, at: float = MAJORITY) -> float | None:
    """Return the score's AUROC for steps of probability at least ``at`` against the rest; None if one class is empty."""
    above = truth >= at
    if above.all() or not above.any():
        return None
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(above, score))


def interval_of(
    figure: Callable[[list[int]], float | None], groups: Sequence[str], seed: int
) -> tuple[float, ...]:
    """Return a figure's 95 % interval by bootstrap over ``groups`` (problems): steps of one are not independent."""
    members = defaultdict(list)
    for at, group in enumerate(groups):
        members[group].append(at)
    names, rng = sorted(members), random.Random(f"{seed} auroc")

    def draws() -> Iterator[float]:
        for _ in range(DRAWS):
            rows = [at for name in rng.choices(names, k=len(names)) for at in members[name]]
            if (found := figure(rows)) is not None:
                yield found

    found = list(draws())
    return tuple(float(x) for x in np.quantile(found, (0.025, 0.975))) if found else ()


def auroc_interval(
    score: np.ndarray, truth: np.ndarray, groups: Sequence[str], seed: int
) -> tuple[float, ...]:
    """Return the 95 % interval of ``auroc``."""
    return interval_of(lambda rows: auroc(score[rows], truth[rows]), groups, seed)


def calibration(score: np.ndarray, truth: np.ndarray) -> list[dict[str, float]]:
    """Return ten bins of the score: mean score, mean truth, number of rows."""
    bins = np.minimum((score * BINS).astype(int), BINS - 1)
    inside = (bins == b for b in np.unique(bins))
    return [
        {"said": float(score[i].mean()), "true": float(truth[i].mean()), "rows": int(i.sum())}
        for i in inside
    ]


def expected_error(bins: Sequence[dict[str, float]]) -> float:
    """Return the expected calibration error: the mean |score - truth| of the bins, weighted by their rows."""
    rows = sum(b["rows"] for b in bins)
    return sum(b["rows"] * abs(b["said"] - b["true"]) for b in bins) / rows


def figures(score: np.ndarray, truth: np.ndarray, probable: bool = True) -> Figures:
    """Return a score's figures; r2, ece and mse only if the score is a probability and not just a ranking."""
    from sklearn.metrics import r2_score

    clipped, probable = np.clip(score, 0, 1), probable and len(truth) > 0
    varied = len(truth) > 1 and np.ptp(truth) > 0
    return {
        "rows": len(truth),
        "r2": float(r2_score(truth, clipped)) if probable and varied else None,
        "spearman": spearman(score, truth),
        "auroc": auroc(score, truth),
        "ece": expected_error(calibration(clipped, truth)) if probable else None,
        "mse": float(np.mean((clipped - truth) ** 2)) if probable else None,
    }


def parts(
    score: np.ndarray, rows: Rows, index: Sequence[int], probable: bool = True
) -> dict[str, Figures]:
    """Return figures for all rows, for own samples, for the other model's steps, and for each domain."""
    truth, own = rows.target.numpy()[list(index)], rows.own[list(index)]
    masks = {"all": np.ones(len(own), dtype=bool)}
    if own.any() and not own.all():
        masks |= {"own": own, "drafted": ~own}
    domains = np.array([rows.domains[i] for i in index])
    names = sorted(set(domains.tolist()))
    masks |= {name: domains == name for name in names if len(names) > 1}
    return {name: figures(score[m], truth[m], probable) for name, m in masks.items()}


def baselines(
    rows: Rows, training: Sequence[int], test: Sequence[int], seed: int
) -> dict[str, np.ndarray]:
    """Return the test rows' scores by baselines that need no perceptron."""
    from sklearn.linear_model import RidgeCV

    free, free_test = rows.free[list(training)], rows.free[list(test)]
    mean, std = _moments(free)
    ridge = RidgeCV(alphas=(0.1, 1.0, 10.0, 100.0))
    ridge.fit((free - mean) / std, rows.target.numpy()[list(training)])
    lowest = rows.lowest[list(test)]
    scores = {
        # for a router negated: the less likely a token, the larger the target's advantage
        "lowest log-probability": lowest if rows.advantage is None else -lowest,
        "ridge on log-probabilities": ridge.predict((free_test - mean) / std),
    }
    if rows.features.pooling:
        scores["ridge on the same features"] = _ridge(rows, training, test, seed)
    return scores


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every column's mean and standard deviation (1 if it is constant)."""
    std = x.std(0)
    return x.mean(0), np.where(std < 1e-6, np.ones_like(std), std)


def _ridge(rows: Rows, training: Sequence[int], test: Sequence[int], seed: int) -> np.ndarray:
    """Score the test rows by ridge regression on the probe's features, fitted on as many rows as memory allows."""
    from sklearn.linear_model import Ridge

    most = max(64, min(4000, rows.limit // (8 * rows.size)))
    chosen = sorted(random.Random(f"{seed} ridge").sample(list(training), min(most, len(training))))
    x = np.empty((len(chosen), rows.size), dtype=np.float32)
    where = {row: at for at, row in enumerate(chosen)}
    for batch in rows.batches(chosen, 512):
        x[[where[int(i)] for i in batch.index]] = batch.x.numpy()
    mean, std = _moments(x)
    x -= mean
    x /= std
    # regularise more the more features there are; scikit-learn solves in the smaller space
    ridge = Ridge(alpha=float(rows.size) / math.sqrt(len(chosen)))
    ridge.fit(x, rows.target.numpy()[chosen])
    scores = np.zeros(len(rows), dtype=np.float32)
    for batch in rows.batches(test, 512):
        scores[batch.index.numpy()] = ridge.predict((batch.x.numpy() - mean) / std)
    return scores[list(test)]
