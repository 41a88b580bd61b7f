"""What a draft is expected to bring and to cost, by the text and earlier rounds alone.

Chances come from what became of drafts like it (``decoding.beliefs``), prices from what passes have cost
(``decoding.costs``). Both are known before a draft is made or judged, so that decisions can rest on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from semspec.decoding.beliefs import Signal, deep, likely
from semspec.decoding.economy import Economy
from semspec.decoding.trim import depths
from semspec.types import Draft

UNLIKELY = 0.002  # chance of a node below which no more nodes are looked at
# tokens of chains in a tree's place, below which they are taken to be as right as the tree
UNTRIED = 48
SLACK = 1.5  # tokens by which late drafts may have disappointed before that counts
FAR = 512  # positions: prices are looked up anew at once where a text has grown by so many
DEEP = [deep(depth) for depth in range(1, 1025)]


@dataclass(slots=True)
class Proposal:
    """A draft as its drafter made it, and what is known of its nodes."""

    tokens: list[int]
    parents: Sequence[int]
    signals: list[Signal]
    sent: frozenset[int] | None = None  # the nodes that the target read; None: all


@dataclass(slots=True, kw_only=True)
class Prospects:
    """What is known of the drafts of one problem where tokens are the unit."""

    economy: Economy
    longest: int  # units of a draft at most: tokens of a chain, levels of a tree
    longest_chain: int = 0  # of a drafter that grows trees: tokens of a chain in a tree's place
    greedy: bool = False  # the target writes the likeliest tokens: a tree's first path is a chain
    copies: bool = False  # the drafter looks up what is there, however long: only its match tells
    cuts: bool = False  # its drafts are point masses
    watches: bool = False  # it reads along while the target writes
    recalls: bool = (
        True  # what it has missed it reads before it drafts; False: the newest position alone
    )
    chain: bool = field(default=False, init=False)  # this round's draft is one in a tree's place
    # how the draft before went: 0 none of it was kept, 2 all of it
    heat: str = field(default="1", init=False)
    # tokens of late drafts that were kept, and that were expected to be: a text may be harder than others
    _kept: float = field(default=0.0, init=False)
    _hoped: float = field(default=0.0, init=False)
    _prices: dict[tuple[str, int], float] = field(default_factory=dict, init=False)
    _context: int | None = field(default=None, init=False)  # positions before the draft
    # the number of problems under way and about the context for which these prices hold
    _priced: tuple[int, int] = field(default=(0, 0), init=False)

    def behind(self, context: int) -> None:
        self._context = context

    def _settle(self) -> None:
        """Have prices of this problem's context: other problems share the economy."""
        economy = self.economy
        if economy.context != self._context:
            economy.behind(self._context)
        if self._priced != (priced := (economy.company, (self._context or 0) // FAR)):
            self._priced = priced
            self._prices.clear()

    def _chance(self, depth: int, chain: bool) -> float:
        """Return the chance that a draft goes on being right at a depth: a tree as often as its first path, at least."""
        chance, deep = self.economy.beliefs.chance, DEEP[depth - 1]
        if chain:
            found = chance(("chain", deep, self.heat))
            few = self.economy.beliefs.tried(("chain",)) < UNTRIED
            return max(found, chance(("before", deep, self.heat))) if few else found
        found = chance(("before", deep, self.heat))
        if self.longest_chain and self.greedy:
            found = max(found, chance(("chain", deep, self.heat)))
        return found

    def _recalling(self, missed: int) -> float:
        """Return what a pass costs in which a drafter reads what it has missed, with the last token of the text."""
        return self._price("read", 1 + (missed if self.recalls else min(missed, 1)))

    @property
    def _branches(self) -> bool:
        """True if its drafts are trees."""
        return self.longest_chain > 0 or self.economy.trees > 0

    @property
    def _mood(self) -> float:
        """Return by how much this text keeps less of late drafts than was expected: at most 1."""
        return min(1.0, (self._kept + SLACK) / (self._hoped + SLACK))

    def _cost(self, length: int, chain: bool) -> float:
        """Return what a draft of this length costs, and its pass."""
        key = "chain" if chain else "draft", length
        if (known := self._prices.get(key)) is None:
            economy = self.economy
            nodes = 1.0 if chain or not self._branches else economy.level
            known = self._asking(length, chain) + economy.reading(1 + length * nodes, nodes > 1)
            self._prices[key] = known = max(known, 1e-9)
        return known

    def _asking(self, units: int, chain: bool) -> float:
        """Return what a draft costs by itself, looked up once in a few rounds."""
        key = "ask chain" if chain else "ask", units
        if (known := self._prices.get(key)) is None:
            self._prices[key] = known = self.economy.asking(units, chain)
        return known

    def _price(self, kind: str, size: int) -> float:
        """Return what a pass costs, looked up once in a few rounds."""
        if (known := self._prices.get((kind, size))) is None:
            economy = self.economy
            if kind == "write":
                known = economy.writing(size, watched=self.watches)
            else:
                known = economy.reading(size, tree=kind == "tree")
            self._prices[kind, size] = known
        return known

    def _proposed(self, draft: Draft) -> Proposal:
        """Return a draft with what is known of its nodes."""
        parents = draft.parents if draft.parents is not None else range(-1, len(draft.tokens) - 1)
        return Proposal(draft.tokens, parents, self._signals(draft, parents))

    def _signals(self, draft: Draft, parents: Sequence[int]) -> list[Signal]:
        """Return what is known of each node."""
        if self.chain or not self.cuts:
            word = "chain" if self.chain else "before"
            words = [(word, DEEP[min(d, 1024) - 1], self.heat) for d in depths(parents)]
            return list(words)
        count, heat, found = len(draft.tokens), self.heat, draft.found[:3]
        levels: Sequence[int] = range(1, count + 1)
        ranks: Sequence[int] = [0] * count
        if draft.parents is not None:
            levels, born = depths(parents), defaultdict[int, int](int)
            ranks = []
            for parent in parents:
                ranks.append(min(born[parent], 9))
                born[parent] += 1
        if draft.likely:
            return [
                ("tree", likely(p), DEEP[min(d, 1024) - 1], heat)
                for p, d in zip(draft.likely, levels, strict=True)
            ]
        origins = draft.origins or [""] * count
        grade = f"m{draft.grade}"
        return [
            (f"{found} {origin} {rank}", grade, DEEP[min(d, 1024) - 1], heat)
            for origin, rank, d in zip(origins, ranks, levels, strict=True)
        ]

    def _weighed(
        self, parents: Sequence[int], signals: Sequence[Signal]
    ) -> tuple[list[int], float, float, bool]:
        """Return the nodes that are worth their place, how many of them are expected to be kept, and what their pass costs.

        At last whether they are a chain. The text's own mood is not in what is expected.
        """
        chances: list[float] = []
        chance = self.economy.beliefs.chance
        for signal, parent in zip(signals, parents, strict=True):
            chances.append(chance(signal) * (chances[parent] if parent >= 0 else 1.0))
        hopes, mood = chances, self._mood
        if mood < 1:
            chances = [mood * chance for chance in chances]
        nodes = self._chosen(parents, chances)
        is_chain = all(parents[node] == at for at, node in zip([-1, *nodes], nodes, strict=False))
        price = self._price("read" if is_chain else "tree", 1 + len(nodes))
        return sorted(nodes), sum(hopes[node] for node in nodes), price, is_chain

    def _chosen(self, parents: Sequence[int], chances: Sequence[float]) -> list[int]:
        """Return the nodes that are worth their place, the likeliest first: parents before children.

        Of nodes in this order the first are taken, as many as gain the most; where they are a tree, the
        likeliest path alone is looked at, too, since a chain is cheaper to read.
        """
        rate, alone = self.economy.rate, self._price("read", 1)
        order = sorted(range(len(chances)), key=lambda node: -chances[node])
        best: list[int] = []
        most, gained, chain, at = 0.0, 0.0, True, -1
        for count, node in enumerate(order, start=1):
            if chances[node] < UNLIKELY:
                break
            gained += chances[node]
            chain, at = chain and parents[node] == at, node
            worth = rate * gained - self._price("read" if chain else "tree", 1 + count) + alone
            if worth > most:
                best, most = order[:count], worth
        if chain:
            return best
        path, gained = list[int](), 0.0
        for node in order:
            if parents[node] != (path[-1] if path else -1):
                continue
            path.append(node)
            gained += chances[node]
            worth = rate * gained - self._price("read", 1 + len(path)) + alone
            if worth > most:
                best, most = list(path), worth
        return best
