"""The greedy procedure, and the two clusterers that need no model: ``exact`` and ``oracle``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from semspec import world
from semspec.errors import UserError

Item = tuple[str, Sequence[str]]
"""A context's text and the texts of the steps sampled after it."""

Triple = tuple[str, str, str]
"""A context, and two steps after it."""

Pair = tuple[str, str]
"""Two steps of one context: a cluster's first member, and the step that may join."""

Greedy = Generator[Pair, bool, list[int]]


class Clusterer(Protocol):
    """Numbers the steps of a context by meaning: 0, 1, 2, ... in order of first appearance."""

    def cluster(self, context: str, steps: Sequence[str]) -> list[int]:
        """Return a cluster number for each of ``steps``."""

    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        """Do the same for many contexts, in order, reading no further ahead than necessary."""


def normal(step: str) -> str:
    """Return a step's text without the parts that do not contribute to its meaning.

    White space becomes one space each, and the tag that opens the thinking is dropped. The closing tag
    stays: a step that ends the thinking differs from one that continues it.
    """
    return " ".join(step.replace("<think>", " ").replace("</think>", " </think> ").split())


def greedy(steps: Sequence[str]) -> Greedy:
    """Cluster ``steps`` in order, comparing each with every cluster's FIRST member.

    A plan: yields (first member, step) and is sent whether they mean the same. A step joins the first
    cluster that matches, so with a relation that is not transitive the order decides, as in the paper.
    Equal texts are never compared, and an empty text only equals itself.
    """
    firsts: list[str] = []
    known: dict[str, int] = {}  # normal text -> cluster
    clusters: list[int] = []
    for step in steps:
        text = normal(step)
        if text not in known:
            for number, first in enumerate(firsts):
                if text and normal(first) and (yield first, step):
                    known[text] = number
                    break
            else:
                known[text] = len(firsts)
                firsts.append(step)
        clusters.append(known[text])
    return clusters


def lockstep(
    items: Iterable[Item],
    same: Callable[[Sequence[Triple]], Sequence[bool]],
    lanes: int,
    done: Callable[[int], object] | None = None,
) -> Iterator[list[int]]:
    """Run ``greedy`` over many contexts side by side, one comparison of each at a time.

    Within a context every comparison depends on the previous answer, so full batches can only come from
    different contexts: up to ``lanes`` of them are open at once, and a new one is opened as soon as
    one is finished. ``done`` is called with the number of finished ones.
    """
    source = enumerate(items)
    open_: dict[int, tuple[str, Greedy, Pair]] = {}
    finished: dict[int, list[int]] = {}
    next_out = count = 0

    def advance(index: int, context: str, plan: Greedy, answer: bool | None) -> None:
        nonlocal count
        try:
            pair = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            finished[index] = end.value
            open_.pop(index, None)
            count += 1
            if done is not None:
                done(count)
        else:
            open_[index] = context, plan, pair

    while True:
        read = 0
        for index, (context, steps) in islice(source, lanes - len(open_)):
            advance(index, context, greedy(steps), None)
            read += 1
        while next_out in finished:
            yield finished.pop(next_out)
            next_out += 1
        if not open_:
            if not read:
                return
            continue  # nothing was asked: equal texts only
        asked = list(open_.items())
        answers = same([(context, *pair) for _, (context, _, pair) in asked])
        for (index, (context, plan, _)), answer in zip(asked, answers, strict=True):
            advance(index, context, plan, answer)


def numbered(keys: Iterable[Hashable]) -> list[int]:
    """Number keys in order of first appearance, which is greedy clustering by equality."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


class _ByKey(Clusterer, Protocol):
    """A clusterer whose relation is the equality of a key: no order, no batches, no model."""

    def cluster_many(self, items: Iterable[Item]) -> Iterator[list[int]]:
        for context, steps in items:
            yield self.cluster(context, steps)


@dataclass(frozen=True, kw_only=True)
class Exact(_ByKey):
    """Same text, apart from white space and the opening tag."""

    def cluster(self, context: str, steps: Sequence[str]) -> list[int]:
        return numbered(normal(step) for step in steps)


@dataclass(frozen=True, kw_only=True)
class Oracle(_ByKey):
    """Same meaning in the embedded world; an unreadable step only means its own text."""

    def cluster(self, context: str, steps: Sequence[str]) -> list[int]:
        problem = world.find_problem(context)
        if problem is None:
            raise UserError(
                "cluster=oracle works only on the embedded world's problems, and a context"
                " has none: use cluster=nli, or contexts of the embedded task"
            )
        return numbered(world.meaning(problem, step) or normal(step) for step in steps)
