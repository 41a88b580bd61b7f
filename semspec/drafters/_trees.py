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
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.sampling import draw_summed
from semspec.deferred import Tensor, torch
from semspec.drafters._base import DrafterBase
from semspec.errors import UserError
from semspec.protocols import Kit
from semspec.types import PROBS, Draft, Room, Sampling

ROOT = -1
FEW = 6  # times ``top_k``: up to so many children are found by comparing
EDGE = 1 - 1e-6  # times the least chance that is looked for, for rounding
TREES = ("chain", "static", "dynamic", "sampled")
Children: TypeAlias = tuple[list[float], list[int], list[int]]
"""Of new nodes, siblings side by side: scores, places of their parents among the open nodes, and columns."""


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
        self.open = self._opened(first) if self.level < self.size.depth else []
        self._place |= {node: place for place, node in enumerate(self.open, len(self.read))}
        self.read += self.open

    def _children(self, rows: Tensor) -> None:
        """Append the children of the open nodes: siblings side by side, the best first."""
        raise NotImplementedError

    def _opened(self, first: int) -> list[int]:
        """Choose the nodes from ``first`` on, all of them new, that get children: none that ends the text."""
        raise NotImplementedError

    def _chosen(self) -> list[int]:
        """Return the nodes of the draft, ascending, with all their ancestors."""
        return list(range(len(self.tokens)))

    def _likely(self, chosen: list[int]) -> list[float]:
        """Return the drafter's probability of each chosen node after its parent; empty for nodes that were drawn."""
        raise NotImplementedError

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
            likely=self._likely(chosen),
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

    A node's score is the probability of the path to it. On every level the ``top_k`` best nodes get their
    ``top_k`` most probable children; of all nodes the ``nodes`` best are kept. No child scores higher than its
    parent, so the ancestors of a kept node are kept, too.
    """

    def __init__(
        self, size: Size, stop_ids: Collection[int], names: NDArray[np.int64] | None = None
    ) -> None:
        super().__init__(size, stop_ids, names)
        self.scores: list[float] = []
        self._kept: list[int] = []  # the best nodes so far, the best first

    def _children(self, rows: Tensor) -> None:
        nodes, first = self.size.nodes, len(self.tokens)
        # a node worse than all nodes of a full tree is not kept, and neither are its children
        least = self.scores[self._kept[-1]] if len(self._kept) == nodes else 0.0
        above = [self.scores[node] for node in self.open] if first else [1.0]
        few = self._few(rows, above, least) if least > 0 and rows.is_cpu else None
        scores, places, columns = few or self._likeliest(rows, above)
        # for some hundred numbers, loops take less time than array operations
        chosen = [i for i, score in enumerate(scores) if score > least]
        chosen.sort(key=scores.__getitem__, reverse=True)  # ties: the older first
        del chosen[nodes:]
        chosen.sort(key=places.__getitem__)
        named = [columns[i] for i in chosen]
        self.tokens += named if self.names is None else map(self.names.item, named)
        self.parents += [self.open[places[i]] for i in chosen]
        self.scores += [scores[i] for i in chosen]
        self._kept += range(first, len(self.tokens))
        self._kept.sort(key=self.scores.__getitem__, reverse=True)
        del self._kept[nodes:]

    def _likeliest(self, rows: Tensor, above: list[float]) -> Children:
        """Return each open node's ``top_k`` most probable children."""
        most = min(self.size.top_k, rows.shape[-1])
        best = rows.topk(most, -1)
        chances = zip(above, best.values.tolist(), strict=True)
        scores = [s * (p if p < 1.0 else 1.0) for s, row in chances for p in row]
        places = [place for place in range(len(above)) for _ in range(most)]
        return scores, places, [column for row in best.indices.tolist() for column in row]

    def _few(self, rows: Tensor, above: list[float], least: float) -> Children | None:
        """Return what is left of ``_likeliest`` above ``least``, and maybe some more; None if it is much.

        Where a tree is full this is little, and comparing takes less time than finding each row's largest numbers.
        """
        own, most, width = rows.numpy(), self.size.top_k, rows.shape[-1]
        # a little lower, so that rounding hides no number: the caller compares the scores
        bounds = np.array([EDGE * least / score for score in above], own.dtype)
        hits = (own > bounds[:, None]).ravel().nonzero()[0].tolist()
        if len(hits) > FEW * most:
            return None
        flat = own.ravel().item
        places = [hit // width for hit in hits]
        chances = [p if (p := flat(hit)) < 1.0 else 1.0 for hit in hits]
        if len(hits) > most:  # a node may have too many
            left = [most] * len(above)
            for i in sorted(range(len(hits)), key=chances.__getitem__, reverse=True):
                left[places[i]] -= 1
                if left[places[i]] < 0:
                    chances[i] = 0.0
        scores = [above[place] * chance for place, chance in zip(places, chances, strict=True)]
        return scores, places, [hit % width for hit in hits]

    def _opened(self, first: int) -> list[int]:
        # a node that is not kept has no children that are
        tokens, stops = self.tokens, self.stop_ids
        new = [node for node in self._kept if node >= first and tokens[node] not in stops]
        return sorted(new[: self.size.top_k])

    def _chosen(self) -> list[int]:
        return sorted(self._kept)

    def _likely(self, chosen: list[int]) -> list[float]:
        scores, parents = self.scores, self.parents
        return [
            scores[node] / scores[parents[node]] if parents[node] != ROOT else scores[node]
            for node in chosen
        ]


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
        self._chances: list[float] = []  # of each node after its parent, if it was not drawn

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
        found: list[list[int]] = []
        for ids, chances, count in zip(best.tolist(), values.tolist(), counts, strict=True):
            possible = [
                chance for chance in chances[:count] if chance > 0
            ]  # the largest come first
            self._chances += possible
            found.append(ids[: len(possible)])
        return found

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

    def _opened(self, first: int) -> list[int]:
        new = range(first, len(self.tokens))
        inner = [node for node in new if self._stands[node] in self.shape]
        return [node for node in inner if self.tokens[node] not in self.stop_ids]

    def _likely(self, chosen: list[int]) -> list[float]:
        return [] if self.rng is not None else [self._chances[node] for node in chosen]


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
