"""Clustering of next steps by meaning: a step's cluster share is its semantic probability.

nli = clusterer("nli", model="embedded/tiny-nli")
for clusters in nli.cluster_many([(context, steps), ...]):
    probabilities = shares(clusters)
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from semspec.errors import UserError
from semspec.probes.cluster.entailment import Entailment
from semspec.probes.cluster.figures import Agreement, agreement, shares
from semspec.probes.cluster.greedy import Clusterer, Exact, Item, Oracle, normal
from semspec.probes.cluster.nli import Nli
from semspec.probes.cluster.published import fetched

__all__ = ["Agreement", "Clusterer", "Entailment", "Exact", "Item", "Nli", "Oracle"]
__all__ += ["agreement", "fetched", "normal", "shares"]

CLUSTERERS: dict[str, Callable[..., Clusterer]] = {"exact": Exact, "nli": Nli, "oracle": Oracle}


def clusterer(name: str, **options: Any) -> Clusterer:
    """Make the clusterer of that name; raise UserError for an unknown name or option."""
    if name not in CLUSTERERS:
        near = difflib.get_close_matches(name, CLUSTERERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(CLUSTERERS)}"
        raise UserError(f"unknown clusterer '{name}': {hint}")
    known = inspect.signature(CLUSTERERS[name]).parameters
    for option in options:
        if option not in known:
            has = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise UserError(f"clusterer {name} has no option '{option}': {has}")
    return CLUSTERERS[name](**options)
