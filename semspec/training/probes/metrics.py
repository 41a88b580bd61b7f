"""Measure a probe against sampled semantic probabilities, and beside simple baselines."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from semspec.training.probes.dataset import Rows

BINS = 10
MAJORITY = 0.5  # a step that most samples agree with
Figures = dict[str, Any]


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation; None where one side is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    from scipy.stats import spearmanr  # type: ignore[import-untyped,unused-ignore] # with sklearn

    return float(spearmanr(a, b).statistic)


def auroc(score: np.ndarray, truth: np.ndarray, at: float = MAJORITY) -> float | None:
    """Return the AUROC of the score for probabilities of at least ``at``."""
    above = truth >= at
    if above.all() or not above.any():
        return None
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(above, score))


def calibration(score: np.ndarray, truth: np.ndarray) -> list[dict[str, float]]:
    """Ten bins of the score: what was said, what was true, how many."""
    bins = np.minimum((score * BINS).astype(int), BINS - 1)
    found = []
    for b in range(BINS):
        inside = bins == b
        if inside.any():
            found.append(
                {
                    "said": float(score[inside].mean()),
                    "true": float(truth[inside].mean()),
                    "rows": int(inside.sum()),
                }
            )
    return found


def expected_error(bins: Sequence[dict[str, float]]) -> float:
    """Expected calibration error: the bins' distance from the diagonal, by their size."""
    rows = sum(b["rows"] for b in bins)
    return sum(b["rows"] * abs(b["said"] - b["true"]) for b in bins) / rows


def figures(score: np.ndarray, truth: np.ndarray) -> Figures:
    """Return the figures of a score that is a probability."""
    from sklearn.metrics import r2_score

    clipped = np.clip(score, 0, 1)
    varied = len(truth) > 1 and np.ptp(truth) > 0
    return {
        "rows": len(truth),
        "r2": float(r2_score(truth, clipped)) if varied else None,
        "spearman": spearman(score, truth),
        "auroc": auroc(score, truth),
        "ece": expected_error(calibration(clipped, truth)) if len(truth) else None,
        "mse": float(np.mean((clipped - truth) ** 2)) if len(truth) else None,
    }


def ranking(score: np.ndarray, truth: np.ndarray) -> Figures:
    """Return the figures of a score that only orders."""
    return {
        "rows": len(truth),
        "r2": None,
        "spearman": spearman(score, truth),
        "auroc": auroc(score, truth),
        "ece": None,
        "mse": None,
    }


def parts(score: np.ndarray, rows: Rows, index: Sequence[int]) -> dict[str, Figures]:
    """Return the figures of all rows, of own samples, of the other model's steps, and of each domain."""
    truth = rows.target.numpy()[list(index)]
    own = rows.own[list(index)]
    told = {"all": figures(score, truth)}
    if own.any() and not own.all():
        told["own"] = figures(score[own], truth[own])
        told["drafted"] = figures(score[~own], truth[~own])
    domains = np.array([rows.domains[i] for i in index])
    if len(set(domains)) > 1:
        for name in sorted(set(domains)):
            told[str(name)] = figures(score[domains == name], truth[domains == name])
    return told


def baselines(
    rows: Rows, training: Sequence[int], test: Sequence[int], seed: int
) -> dict[str, np.ndarray]:
    """Scores of the test rows by what needs no perceptron."""
    from sklearn.linear_model import RidgeCV

    target = rows.target.numpy()
    free, free_test = rows.free[list(training)], rows.free[list(test)]
    mean, std = free.mean(0), free.std(0)
    std[std < 1e-6] = 1.0
    ridge = RidgeCV(alphas=(0.1, 1.0, 10.0, 100.0))
    ridge.fit((free - mean) / std, target[list(training)])
    told = {
        "lowest log-probability": rows.lowest[list(test)],
        "ridge on log-probabilities": ridge.predict((free_test - mean) / std),
    }
    if rows.features.pooling:
        told["ridge on the same features"] = _ridge(rows, training, test, seed)
    return told


def _ridge(rows: Rows, training: Sequence[int], test: Sequence[int], seed: int) -> np.ndarray:
    """Ridge regression on the probe's own features, on as many rows as memory holds in fp32."""
    from sklearn.linear_model import Ridge

    most = max(64, min(4000, rows.limit // (8 * rows.size)))
    chosen = sorted(random.Random(f"{seed} ridge").sample(list(training), min(most, len(training))))
    x = np.empty((len(chosen), rows.size), dtype=np.float32)
    where = {row: at for at, row in enumerate(chosen)}
    for batch in rows.batches(chosen, 512):
        x[[where[int(i)] for i in batch.index]] = batch.x.numpy()
    mean, std = x.mean(0), x.std(0)
    std[std < 1e-6] = 1.0
    x -= mean
    x /= std
    # as strong as there are features: scikit-learn then solves in the smaller of the two spaces
    ridge = Ridge(alpha=float(rows.size) / math.sqrt(len(chosen)))
    ridge.fit(x, rows.target.numpy()[chosen])
    scores = np.zeros(len(rows), dtype=np.float32)
    for batch in rows.batches(test, 512):
        scores[batch.index.numpy()] = ridge.predict((batch.x.numpy() - mean) / std)
    return scores[list(test)]
