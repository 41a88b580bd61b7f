"""Groups steps that mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from semspec import world
from semspec.errors import UserError

Item = tuple[str, Sequence[str]]


class Clusterer(Protocol):
    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        """A cluster number for each step of each (context, steps)."""
        ...


class _ByKey:
    def __init__(self, oracle: bool) -> None:
        self.oracle = oracle

    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        for context, steps in items:
            problem = world.find_problem(context) if self.oracle else None
            numbers: dict[object, int] = {}
            found = []
            for step in steps:
                said = world.meaning(problem, step) if problem else None
                found.append(numbers.setdefault(said or step, len(numbers)))
            yield found


def clusterer(name: str, **options: Any) -> Clusterer:
    if name == "nli":
        raise UserError("cluster=nli is not there yet: use cluster=oracle or cluster=exact")
    return _ByKey(name == "oracle")


def shares(clusters: Sequence[int]) -> list[float]:
    """Each step's semantic probability: the share of its cluster (SemanticSpec 3.2.1, step 3)."""
    sizes = Counter(clusters)
    return [sizes[c] / len(clusters) for c in clusters]
