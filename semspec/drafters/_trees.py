"""Grow a draft tree level by level, from the rows of a draft model or of a head on the target.

    tree = BestFirst(Size(...), stop_ids)        or Fixed(...)
    while tree.open:
        tree.grow(rows)      # [len(tree.open), V] probabilities of what follows each open node
    draft = tree.draft()

``tree.read`` lists the nodes that a model has to read for this, parents first and open nodes last;
``reading()`` gives them as the tokens and parents of a query, ``opened()`` only the open ones.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.sampling import draw_summed
from semspec.deferred import Tensor, torch
from semspec.drafters._base import DrafterBase
from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.types import PROBS, Draft, Room, Sampling

ROOT = -1
EDGE = 1 - 1e-6  # times the least chance that is looked for, for rounding
TREES = ("chain", "static", "dynamic", "sampled")


@dataclass(frozen=True, slots=True)
class Size:
    """The largest size of a tree."""

    depth: int
    top_k: int  # most children of a node, and most nodes of a level that have children
    nodes: int

    def __post_init__(self) -> None:
        if min(self.depth, self.top_k, self.nodes) < 1:
            raise UserError(
                f"tree_depth={self.depth}, tree_top_k={self.top_k},"
                f" tree_nodes={self.nodes}: give at least 1 for each, or leave tree= out"
            )


class Growth:
    """The nodes so far, and which of them get children next."""

    def __init__(
        self, size: Size, stop_ids: Collection[int], names: NDArray[np.int64] | None = None
    ) -> None:
        self.size, self.stop_ids = size, stop_ids
        self.names = names  # the token of each column of the rows; None: column i is token i
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.level = 0
        self.read: list[int] = []
        self.open: list[int] = [ROOT]
        self._rows: list[Tensor] = []  # of every level that was grown
        self._grown: list[int] = []  # the node that each row follows
        self._place: dict[int, int] = {ROOT: ROOT}  # node -> index in ``read``

    def grow(self, rows: Tensor) -> None:
        """Give the open nodes children, and open some of these."""
        assert rows.shape[0] == len(self.open), (len(rows), len(self.open))
        self._grown += self.open
        self._rows.append(rows)
        self.level += 1
        first = len(self.tokens)
        self._children(rows)
        self.open = []
        if self.level < self.size.depth:
            born = range(first, len(self.tokens))
            self.open = self._opened([n for n in born if self.tokens[n] not in self.stop_ids])
        for node in self.open:
            self._place[node] = len(self.read)
            self.read.append(node)

    def _children(self, rows: Tensor) -> None:
        """Append the children of the open nodes: siblings side by side, the best first."""
        raise NotImplementedError

    def _opened(self, born: list[int]) -> list[int]:
        """Choose the new nodes that get children."""
        raise NotImplementedError

    def _chosen(self) -> list[int]:
        """Return the nodes of the draft, ascending, with all their ancestors."""
        return list(range(len(self.tokens)))

    def reading(self) -> tuple[list[int], list[int]]:
        """Return tokens and parents of what a model reads, the open nodes last."""
        return self._read(self.read)

    def opened(self) -> tuple[list[int], list[int]]:
        """Return tokens and parents of the open nodes, parents as indices in ``read``; nothing for the root."""
        return self._read(self.open if self.tokens else ())

    def _read(self, nodes: Sequence[int]) -> tuple[list[int], list[int]]:
        places = [self._place[self.parents[node]] for node in nodes]
        return [self.tokens[node] for node in nodes], places

    def draft(self, sampled: bool = False, with_rows: bool = True) -> Draft:
        """Return the tree, by default with the row at each node's parent.

        These rows are evidence, and also ``probs`` if siblings were drawn from them (``sampled``).
        """
        chosen = self._chosen()
        number = {ROOT: ROOT} | {node: i for i, node in enumerate(chosen)}
        draft = Draft(
            [self.tokens[node] for node in chosen],
            list(range(1, len(chosen) + 1)),
            parents=[number[self.parents[node]] for node in chosen],
        )
        if with_rows:
            row = {node: i for i, node in enumerate(self._grown)}
            of = torch.tensor([row[self.parents[node]] for node in chosen])
            rows = torch.cat(self._rows)
            rows = rows.index_select(0, of.to(rows.device))
            draft.evidence = {PROBS: rows}
            draft.probs = rows if sampled else None
        return draft


class BestFirst(Growth):
    """The nodes with the most probable paths (EAGLE-2, Li et al. 2024, section 4).

    A node's score is the cumulative log-probability of the path to it. On every level the ``top_k``
    best nodes get their ``top_k`` most probable children; of all nodes the ``nodes`` best are kept.
    No child scores higher than its parent, so the ancestors of a kept node are kept, too.
    """

    def __init__(
        self, size: Size, stop_ids: Collection[int], names: NDArray[np.int64] | None = None
    ) -> None:
        super().__init__(size, stop_ids, names)
        self.scores: list[float] = []
        self._kept: list[int] = []  # the best nodes so far, the best first

    def _children(self, rows: Tensor) -> None:
        nodes = self.size.nodes
        # a node worse than all nodes of a full tree is not kept, and neither are its children
        least = self.scores[self._kept[-1]] if len(self._kept) == nodes else -math.inf
        found: list[tuple[float, int, int]] = []  # score, parent and column of each child
        # for some hundred numbers, loops take less time than array operations
        for node, ranked in zip(self.open, self._ranked(rows, least), strict=True):
            above = self.scores[node] if node != ROOT else 0.0
            for chance, column in ranked:
                if not chance > 0:
                    break
                score = above + min(math.log(chance), 0.0)
                if not score > least:
                    break  # nor does a later sibling score more
                found.append((score, node, column))
        if len(found) > nodes:
            order = sorted(range(len(found)), key=lambda i: -found[i][0])  # ties: the older first
            found = [found[i] for i in sorted(order[:nodes])]
        first = len(self.tokens)
        self.parents += [node for _, node, _ in found]
        chosen = [column for _, _, column in found]
        self.tokens += chosen if self.names is None else map(self.names.item, chosen)
        self.scores += [score for score, _, _ in found]
        self._kept += range(first, len(self.tokens))
        self._kept.sort(key=self.scores.__getitem__, reverse=True)  # ties: the older first
        del self._kept[nodes:]

    def _ranked(self, rows: Tensor, least: float) -> Iterable[Iterable[tuple[float, int]]]:
        """Return each row's ``top_k`` largest numbers with their columns, the largest first.

        Those that would give their node a score below ``least`` may be missing.
        """
        most = min(self.size.top_k, rows.shape[-1])
        if (
            least > -math.inf and rows.is_cpu
        ):  # few are left, which are found faster than ``topk`` sorts
            # a little lower, so that rounding hides no number: the caller compares the scores
            edges = [[EDGE * math.exp(least - self.scores[node])] for node in self.open]
            own, width = rows.numpy(), rows.shape[-1]
            hits = np.flatnonzero(own > np.array(edges, own.dtype))
            if len(hits) <= most * len(self.open):
                ranked: list[list[tuple[float, int]]] = [[] for _ in self.open]
                for chance, hit in zip(own.ravel()[hits].tolist(), hits.tolist(), strict=True):
                    ranked[hit // width].append((chance, hit % width))
                for one in ranked:
                    one.sort(key=itemgetter(0), reverse=True)
                    del one[most:]
                return ranked
        best = rows.topk(most, -1)
        return map(zip, best.values.tolist(), best.indices.tolist())

    def _opened(self, born: list[int]) -> list[int]:
        # a node that is not kept has no children that are
        kept = set(born)
        return sorted([node for node in self._kept if node in kept][: self.size.top_k])

    def _chosen(self) -> list[int]:
        return sorted(self._kept)


class Fixed(Growth):
    """Always the same shape; a node's children are its most probable tokens, or drawn (``rng``).

    Siblings are drawn one after another without replacement. Their number must not depend on what
    was drawn, or they would no longer be a sample; the fixed shape ensures that.
    """

    def __init__(
        self,
        size: Size,
        stop_ids: Collection[int],
        rng: random.Random | None,
        names: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(size, stop_ids, names)
        self.rng = rng
        self.shape = fixed_shape(size.depth, size.top_k, size.nodes)
        self._stands: dict[int, tuple[int, ...]] = {ROOT: ()}  # node -> its ranks from the root on

    def _children(self, rows: Tensor) -> None:
        counts = [self.shape[self._stands[node]] for node in self.open]
        picked = self._likeliest(rows, counts) if self.rng is None else self._drawn(rows, counts)
        for node, columns in zip(self.open, picked, strict=True):
            at = self._stands[node]
            for rank, column in enumerate(columns):
                self._stands[len(self.tokens)] = (*at, rank)
                self.parents.append(node)
                self.tokens.append(column if self.names is None else int(self.names[column]))

    def _likeliest(self, rows: Tensor, counts: list[int]) -> list[list[int]]:
        """Return the columns of each row's most probable tokens, ``counts`` of them."""
        values, best = rows.topk(min(max(counts), rows.shape[-1]), -1)
        pairs = zip(best.tolist(), values.tolist(), counts, strict=True)
        return [
            [t for t, p in zip(ids[:n], chances[:n], strict=True) if p > 0]
            for ids, chances, n in pairs
        ]

    def _drawn(self, rows: Tensor, counts: list[int]) -> list[list[int]]:
        """Return columns of each row, ``counts`` of them, drawn without replacement."""
        assert self.rng is not None
        rows = rows.cpu()
        sums, own, found = rows.cumsum(-1).numpy(), rows.numpy(), list[list[int]]()
        for row, summed, count in zip(own, sums, counts, strict=True):
            drawn = [draw_summed(row, summed, self.rng.random())]
            for already in range(1, count):
                row = row.copy() if already == 1 else row  # ``rows`` must not change
                row[drawn[-1]] = 0.0
                summed = row.cumsum(dtype=np.float64)
                if not summed[-1] > 0:
                    break  # nothing else can be drawn
                drawn.append(draw_summed(row, summed, self.rng.random()))
            found.append(drawn)
        return found

    def _opened(self, born: list[int]) -> list[int]:
        return [node for node in born if self._stands[node] in self.shape]


@dataclass(frozen=True, kw_only=True)
class TreeOptions(DrafterBase):
    """The options of a drafter that can grow trees."""

    tree: str = "chain"  # static: always one shape; dynamic: the likeliest nodes; sampled: drawn
    tree_depth: int = 6
    tree_top_k: int = 10  # most children of a node
    tree_nodes: int = 32

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise UserError(f"tree={self.tree}: give {', '.join(TREES[:-1])} or {TREES[-1]}")
        Size(self.tree_depth, self.tree_top_k, self.tree_nodes)  # raises for impossible sizes

    @property
    def levels(self) -> int:
        return 0 if self.tree == "chain" else self.tree_depth

    def drawn(self, sampling: Sampling) -> bool:
        return self.tree == "sampled" and not sampling.greedy

    def seed(self, kit: Kit, room: Room, names: NDArray[np.int64] | None = None) -> Growth:
        """Return an empty tree, as deep as there is room for; ``names``: the token of each column."""
        size = Size(min(self.levels, room.tokens, room.units), self.tree_top_k, self.tree_nodes)
        if self.tree == "dynamic":
            return BestFirst(size, kit.stop_ids, names)
        return Fixed(size, kit.stop_ids, kit.rng if self.drawn(kit.sampling) else None, names)

    def finished(self, tree: Growth, kit: Kit) -> Draft:
        """Return the draft of a grown tree from ``seed``."""
        drawn = self.drawn(kit.sampling)
        return tree.draft(drawn, drawn or (kit.compares and not kit.sampling.greedy))


def tree_sampling(sampling: Sampling) -> Sampling:
    """Return temperature 1 for greedy sampling, whose one-hot rows would give a tree no branches."""
    return Sampling(1.0) if sampling.greedy else sampling


@lru_cache(maxsize=64)
def fixed_shape(depth: int, top_k: int, nodes: int) -> dict[tuple[int, ...], int]:
    """Return the number of children of each inner node, keyed by the sibling ranks on its path.

    It takes the nodes that are likeliest to be right if the r-th most probable token is right with a
    probability proportional to 1 / r^2.
    """
    total = sum(1 / rank**2 for rank in range(1, top_k + 1))
    chances = [1 / rank**2 / total for rank in range(1, top_k + 1)]
    children: dict[tuple[int, ...], int] = {}
    waiting: list[tuple[float, tuple[int, ...]]] = [(-chances[0], (0,))]
    while waiting and nodes:
        nodes -= 1
        chance, at = heapq.heappop(waiting)
        *above, rank = at
        children[tuple(above)] = rank + 1
        if rank + 1 < top_k:
            next_chance = chance * chances[rank + 1] / chances[rank]
            heapq.heappush(waiting, (next_chance, (*above, rank + 1)))
        if len(at) < depth:
            heapq.heappush(waiting, (chance * chances[0], (*at, 0)))
    return children
