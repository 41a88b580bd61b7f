"""Linear cost tables for tests, in seconds that are easy to add up."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.costs import ASK, READ, TREE, WRITE, Costs
from semspec.decoding.economy import Economy

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def table(
    *, token: float = 1.0, passing: float = 1.0, fed: float = 0.1, asked: float = 0.0,
    units: float = 0.0, tree: float = 0.0, lone: float = 0.0, together: int = 1,
) -> Costs:  # fmt: skip
    """Return a recorded table of seconds.

    Writing costs ``token`` for each token and ``lone`` for the query; a pass costs ``passing``, ``fed`` for each token
    and ``tree`` extra for a tree; a draft costs ``asked`` and ``units`` for each unit.
    """
    costs = Costs()
    for size in SIZES:
        costs.add("target", WRITE, together, size, lone + token * size)
        costs.add("target", READ, together, size, passing + fed * size)
        costs.add("target", TREE, together, size, passing + tree + fed * size)
        for who in ("draft", "nested"):
            costs.add(who, ASK, together, size, max(asked + units * size, 1e-9))
    costs.fixed = True
    return costs


def economy(costs: Costs, first: float = 0.5) -> Economy:
    return Economy(costs, beliefs=Beliefs(first))


def crowded(gaining: Sequence[int], losing: Sequence[int]) -> Costs:
    """Return a recorded table in which drafts pay off at the batch sizes ``gaining`` and lose at ``losing``.

    This mimics a device: a pass over few tokens takes as long as over one, but with many each token costs extra.
    """
    costs = Costs()
    for together in (*gaining, *losing):
        fed = 0.02 if together in gaining else 1.0
        one = table(fed=fed, passing=1.0, asked=0.01, units=0.01, together=together)
        costs.curves |= one.curves
    costs.fixed = True
    return costs
