"""The most frequent prefixes of many rows of tokens, as a tree.

REST (He et al. 2023, section 3.2) drafts the heaviest nodes of a trie of continuations. A node's weight is
the number of rows through it, so no node is heavier than its parent, and the heaviest ones form a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semspec.datastores.sparse import END, Tokens


class Trie(NamedTuple):
    """Nodes, parents first (-1: none), the heaviest sibling first."""

    tokens: list[int]
    parents: list[int]
    counts: list[int]


def heaviest(rows: Tokens, nodes: int) -> Trie:
    """Return the ``nodes`` heaviest prefixes of rows [places, length]; END ends a row early."""
    count, length = rows.shape
    ranked = rows[np.lexsort(rows.T[::-1])]
    first = np.ones((length, count), bool)  # first of the rows that share a prefix of this depth
    differ = (ranked[1:] != ranked[:-1]).T
    np.logical_or.accumulate(differ, axis=0, out=first[:, 1:])
    depth, row = np.nonzero(first)
    # a group ends where the next one of its depth begins
    end = np.append(row[1:], count)
    end[end == 0] = count
    weight = end - row
    real = ranked[row, depth] != END
    depth, row, weight = depth[real], row[real], weight[real]
    order = np.lexsort((row, depth, -weight))[:nodes]
    depth, row, weight = depth[order], row[order], weight[order]
    # the parent is the last group one level up that begins at or before this row
    begins = np.maximum.accumulate(np.where(first, np.arange(count), 0), axis=1)
    above = np.where(depth > 0, begins[depth - 1, row], 0)
    number: dict[tuple[int, int], int] = {}
    tokens, parents = list[int](), list[int]()
    values = ranked[row, depth].tolist()
    for at, (d, r, up) in enumerate(zip(depth.tolist(), row.tolist(), above.tolist(), strict=True)):
        number[d, r] = at
        tokens.append(values[at])
        parents.append(number[d - 1, up] if d else -1)
    return Trie(tokens, parents, weight.tolist())


def greediest(rows: Tokens) -> list[int]:
    """Return the path of the most frequent token at each step, the smallest of equally frequent ones."""
    path = list[int]()
    for depth in range(rows.shape[1]):
        if len(rows) == 1:
            rest: list[int] = rows[0, depth:].tolist()
            return path + (rest[: rest.index(END)] if END in rest else rest)
        column = rows[:, depth]
        values, counts = np.unique(column[column != END], return_counts=True)
        if not len(values):
            break
        token = values[counts.argmax()]
        path.append(int(token))
        rows = rows[column == token]
    return path
