"""Semantic probabilities of clusters, and the agreement of two clusterings."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from semspec.probes.cluster.greedy import numbered


def shares(clusters: Sequence[int]) -> list[float]:
    """Return each step's semantic probability: its cluster's share of all."""
    sizes = Counter(clusters)
    return [sizes[cluster] / len(clusters) for cluster in clusters]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of clusterings with the truth, over all contexts."""

    contexts: int
    pairs: int  # of steps after the same context, all contexts together
    accuracy: float  # of pairs: together or apart, as in the truth
    precision: float  # of the pairs put together, those that belong together
    recall: float  # of the pairs that belong together, those put together
    f1: float
    adjusted_rand: float  # mean over contexts
    probability_error: float  # mean |share - true share| over all steps
    identical: float  # share of contexts whose clustering is the true one


def agreement(found: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]) -> Agreement:
    """Compare clusterings of the same contexts; the numbers of clusters are arbitrary.

    0 / 0 counts as 1: no pair was put together wrongly if none was put together.
    """
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import pair_confusion_matrix

    assert len(found) == len(truth), "one clustering for each context"
    apart = wrong = missed = together = 0
    rand, errors, identical = [], [], 0
    for a, b in zip(found, truth, strict=True):
        assert len(a) == len(b), "one cluster for each step"
        if not a:
            continue
        with warnings.catch_warnings():  # sklearn takes many clusters of few steps for a regression
            warnings.simplefilter("ignore", UserWarning)
            # ordered pairs, so every figure counts twice: [[apart, wrong], [missed, together]]
            (tn, fp), (fn, tp) = pair_confusion_matrix(b, a).tolist()
            rand.append(float(adjusted_rand_score(b, a)))
        apart, wrong = apart + tn // 2, wrong + fp // 2
        missed, together = missed + fn // 2, together + tp // 2
        errors += [abs(x - y) for x, y in zip(shares(a), shares(b), strict=True)]
        identical += numbered(a) == numbered(b)

    pairs = apart + wrong + missed + together
    precision, recall = _ratio(together, together + wrong), _ratio(together, together + missed)
    return Agreement(
        contexts=len(rand),
        pairs=pairs,
        accuracy=_ratio(apart + together, pairs),
        precision=precision,
        recall=recall,
        f1=_ratio(2 * precision * recall, precision + recall),
        adjusted_rand=_ratio(sum(rand), len(rand)),
        probability_error=sum(errors) / max(1, len(errors)),
        identical=_ratio(identical, len(rand)),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
