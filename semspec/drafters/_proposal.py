"""Build a retrieval draft: paths of tokens that share prefixes, cut to the room there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice

from semspec.decoding.trim import first_path
from semspec.protocols import Kit
from semspec.splitters.token import TokenBoundary
from semspec.types import Draft, Room

ROOT = -1


class Proposal:
    """A tree after a context's last token, the first sibling preferred; or only its first path."""

    def __init__(
        self, kit: Kit, room: Room, *, found: str = "", tree: bool = True, nodes: int = 512
    ) -> None:
        self.kit, self.room, self.found = kit, room, found
        self.tree = tree and kit.trees
        self.nodes = nodes
        # the loop counts trees in tokens: one token per unit, and one per level
        self.deepest = min(room.tokens, room.units) if self.tree else room.limit
        self.grade = 0  # ``Draft.grade``
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.origins: list[str] = []
        self._depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int, origin: str) -> int | None:
        """Return the node of ``token`` after ``parent``, added if it is new; None if there is no room."""
        if (known := self._children.get((parent, token))) is not None:
            return known
        depth = 1 if parent == ROOT else self._depths[parent] + 1
        if depth > self.deepest or len(self.tokens) >= self.nodes:
            return None
        if parent != ROOT and self.tokens[parent] in self.kit.stop_ids:
            return None  # nothing follows an end of text
        node = len(self.tokens)
        self._children[parent, token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.origins.append(origin)
        self._depths.append(depth)
        return node

    def extend(self, parent: int, tokens: Sequence[int], origin: str) -> None:
        """Add a path after a node, as far as there is room."""
        at = 0
        while at < len(tokens) and (parent, tokens[at]) in self._children:
            parent = self._children[parent, tokens[at]]
            at += 1
        depth = 0 if parent == ROOT else self._depths[parent]
        room = min(self.deepest - depth, self.nodes - len(self.tokens))
        new = tokens[at : at + room]
        if room <= 0 or not new or (parent != ROOT and self.tokens[parent] in self.kit.stop_ids):
            return
        if not self.kit.stop_ids.isdisjoint(new):
            new = new[: 1 + next(i for i, t in enumerate(new) if t in self.kit.stop_ids)]
        first = len(self.tokens)
        parents = [parent, *range(first, first + len(new) - 1)]
        self._children.update(
            zip(zip(parents, new, strict=True), range(first, first + len(new)), strict=True)
        )
        self.tokens += new
        self.parents += parents
        self.origins += [origin] * len(new)
        self._depths += range(depth + 1, depth + 1 + len(new))

    def copy(
        self,
        source: Sequence[int],
        start: int,
        longest: int,
        parent: int = ROOT,
        origin: str = "main",
        rounds: bool = False,
    ) -> None:
        """Append ``longest`` tokens of ``source`` from ``start`` on, and the rest of their last unit.

        If each token is a unit, these are ``longest`` tokens; a step that was begun is copied whole.
        With ``rounds``, a copy that reaches the end of periodic text goes on with another period.
        """
        tokens = source[start : start + self.room.limit]
        if rounds and len(tokens) < self.room.limit:
            tokens = _another_round(source, start, min(longest + len(tokens), self.room.limit))
        if len(tokens) > longest:
            tokens = tokens[: self._rounded(tokens, longest)]
        self.extend(parent, tokens, origin)

    def _rounded(self, tokens: Sequence[int], longest: int) -> int:
        boundary, units = self.kit.boundary(), 0
        if isinstance(boundary, TokenBoundary):
            return min(longest, self.room.units)
        for taken, token in enumerate(tokens, 1):
            end = boundary.feed(token)
            units += end is not None
            if units == self.room.units or (taken >= longest and end is not None):
                return taken
        return len(tokens)

    def grow(
        self, shape: Sequence[tuple[int, int]], after: Callable[[int], Sequence[int]], root: int
    ) -> None:
        """Fill an empty proposal with a tree of this shape.

        ``shape`` gives for each node its parent and its rank among the tokens that come ``after``
        the parent's token, all of them different; ``root`` is the context's last token.
        """
        assert not self.tokens
        tokens, parents, depths = self.tokens, self.parents, self._depths
        nodes: list[int] = [ROOT] * (len(shape) + 1)  # by node of the shape; the root is last
        follow: list[Sequence[int]] = [()] * len(shape) + [after(root)]
        for at, (parent, rank) in enumerate(shape):
            row, above = follow[parent], nodes[parent]
            depth = depths[above] + 1 if above >= 0 else 1
            if rank >= len(row) or depth > self.deepest:
                continue
            if len(tokens) == self.nodes:
                break
            token = row[rank]
            nodes[at] = len(tokens)
            tokens.append(token)
            parents.append(above)
            depths.append(depth)
            if token not in self.kit.stop_ids:  # nothing follows an end of text
                follow[at] = after(token)
        self.origins = ["main"] * len(tokens)
        self._children.update(
            zip(zip(parents, tokens, strict=True), range(len(tokens)), strict=True)
        )

    def draft(self) -> Draft:
        """Return the draft, as point masses: nothing here was sampled."""
        count = len(self.tokens)
        chain = self.parents == list(range(ROOT, count - 1))
        draft = Draft(found=self.found, grade=self.grade)
        if self.tree and not chain:
            draft.tokens, draft.parents, draft.origins = self.tokens, self.parents, self.origins
            draft.ends = list(range(1, count + 1))
        else:
            path = range(count) if chain else first_path(self.parents)
            tokens = [self.tokens[node] for node in path]
            draft.tokens, draft.ends = cut_into_units(self.kit, self.room, tokens)
            draft.origins = [self.origins[node] for node in path[: len(draft.tokens)]]
        return draft


def _another_round(source: Sequence[int], start: int, longest: int) -> Sequence[int]:
    """Return ``source`` from ``start`` on, repeated if the same tokens also stand right before it."""
    period = source[start:]
    if not period or list(source[max(0, start - len(period)) : start]) != list(period):
        return period
    return [*islice(cycle(period), max(longest, len(period)))]


def cut_into_units(kit: Kit, room: Room, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return as many units as there is room for, and where they end; an open end counts as one."""
    boundary, taken, ends = kit.boundary(), 0, list[int]()
    if isinstance(boundary, TokenBoundary) and kit.stop_ids.isdisjoint(tokens):
        kept = list(tokens[: min(room.limit, room.units)])
        return kept, list(range(1, len(kept) + 1))
    for token in tokens[: room.limit]:
        taken += 1
        if (end := boundary.feed(token)) is not None:
            ends.append(taken + end)
        if len(ends) == room.units or token in kit.stop_ids:
            break
    if taken and len(ends) < room.units and (not ends or ends[-1] < taken):
        ends.append(taken)
    return list(tokens[:taken]), ends
