"""Predict what a draft brings and costs, from the text and earlier rounds alone.

Acceptance chances come from similar drafts (``decoding.beliefs``), prices from measured passes
(``decoding.costs``). Both are known before a draft is made or judged, so decisions can rest on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from semspec.decoding.beliefs import Signal, deep, likely
from semspec.decoding.economy import Economy
from semspec.decoding.trim import depths
from semspec.types import Draft

UNLIKELY = 0.002  # ignore nodes with a lower chance
# until so many tokens of chains were tried in place of trees, chains count as no worse than trees
UNTRIED = 48
FIRST_TREES = 3.0  # trees to read before trees and chains are compared by what they brought
SLACK = 1.5  # tokens by which recent drafts may disappoint before that counts
FAR = 512  # positions of growth after which prices are looked up anew
DEEP = [deep(depth) for depth in range(1, 1025)]


@dataclass(slots=True)
class Proposal:
    """A draft as its drafter made it, with the signals of its nodes."""

    tokens: list[int]
    parents: Sequence[int]
    signals: list[Signal]
    sent: frozenset[int] | None = None  # the nodes that the target read; None: all


def caught_up(missed: int, recalls: bool) -> int:
    """Return the tokens of a pass over the last token and what a drafter has missed: all of it, or only the newest."""
    return 1 + (missed if recalls else min(missed, 1))


@dataclass(slots=True, kw_only=True, eq=False)
class Prospects:
    """Predictions for the drafts of one problem where tokens are the unit."""

    economy: Economy
    longest: int  # most units of a draft: tokens of a chain, levels of a tree
    longest_chain: int = 0  # most tokens of a chain that a tree drafter drafts in place of a tree
    greedy: bool = False  # greedy sampling: a tree's first path is what its chain would be
    copies: bool = False  # drafts are looked up, at any length: only the match tells their quality
    cuts: bool = False  # drafts are point masses, and may be cut
    watches: bool = False  # the drafter reads along while the target writes
    # the drafter reads all it has missed before it drafts; False: only the newest position
    recalls: bool = True
    # this round's draft is a chain in place of a tree
    chain: bool = field(default=False, init=False)
    # how much of the last draft was kept: 0 none, 1 some, 2 all; new: none was drafted yet in this problem
    heat: str = field(default="new", init=False)
    # faded sums of kept and of expected draft tokens: this text may be harder than others
    _kept: float = field(default=0.0, init=False)
    _hoped: float = field(default=0.0, init=False)
    _prices: dict[tuple[str, int], float] = field(default_factory=dict, init=False)
    _context: int | None = field(default=None, init=False)  # context length before the draft
    # the load and the context step for which these prices hold
    _priced: tuple[int, int] = field(default=(0, 0), init=False)

    def behind(self, context: int) -> None:
        self._context = context

    def _settle(self) -> None:
        """Set the shared economy's prices to this problem's context."""
        economy = self.economy
        if economy.context != self._context:
            economy.behind(self._context)
        if self._priced != (priced := (economy.company, (self._context or 0) // FAR)):
            self._priced = priced
            self._prices.clear()

    def _chance(self, depth: int, chain: bool) -> float:
        """Return the chance that a draft stays right at a depth; for a tree, at least that of its first path."""
        beliefs, deep = self.economy.beliefs, DEEP[min(depth, len(DEEP)) - 1]
        if chain or (self.longest_chain and self._only_chains):
            return beliefs.chance(("chain", deep, self.heat))
        found = beliefs.chance(("before", deep, self.heat))
        if self.longest_chain and self.greedy:
            found = max(found, beliefs.chance(("chain", deep, self.heat)))
        return found

    @property
    def _only_chains(self) -> bool:
        """True if chains were tried and hardly any trees: what is known of trees is that their first path is a chain."""
        economy = self.economy
        return economy.trees < FIRST_TREES and economy.beliefs.tried(("chain",)) > 0

    @property
    def _word(self) -> str:
        """Return the first part of the signals of this round's draft, by depth: a chain in place of a tree, or what the drafter makes."""
        return "chain" if self.chain else "before"

    def _recalling(self, missed: int) -> float:
        """Return the cost of a pass over the last token and what the drafter has missed."""
        return self._price("read", caught_up(missed, self.recalls))

    @property
    def _branches(self) -> bool:
        """True if the drafter grows trees."""
        return self.longest_chain > 0 or self.economy.trees > 0

    @property
    def _mood(self) -> float:
        """Return kept over expected tokens of recent drafts in this text, at most 1."""
        return min(1.0, (self._kept + SLACK) / (self._hoped + SLACK))

    def _cost(self, length: int, chain: bool) -> float:
        """Return the cost of a draft of this length and of its verifying pass."""
        key = "chain" if chain else "draft", length
        if (known := self._prices.get(key)) is None:
            economy = self.economy
            nodes = 1.0 if chain or not self._branches else economy.level
            known = self._asking(length, chain) + economy.reading(1 + length * nodes, nodes > 1)
            self._prices[key] = known = max(known, 1e-9)
        return known

    def _asking(self, units: int, chain: bool) -> float:
        """Return the cost of making a draft, cached for a few rounds."""
        key = "ask chain" if chain else "ask", units
        if (known := self._prices.get(key)) is None:
            self._prices[key] = known = self.economy.asking(units, chain)
        return known

    def _price(self, kind: str, size: int) -> float:
        """Return the cost of a pass, cached for a few rounds."""
        if (known := self._prices.get((kind, size))) is None:
            economy = self.economy
            if kind == "write":
                known = economy.writing(size, watched=self.watches)
            else:
                known = economy.reading(size, tree=kind == "tree")
            self._prices[kind, size] = known
        return known

    def _proposed(self, draft: Draft) -> Proposal:
        """Return a draft with the signals of its nodes."""
        parents = draft.parents if draft.parents is not None else range(-1, len(draft.tokens) - 1)
        return Proposal(draft.tokens, parents, self._signals(draft, parents))

    def _signals(self, draft: Draft, parents: Sequence[int]) -> list[Signal]:
        """Return the signal of each node."""
        if self.chain or not self.cuts:
            words = [(self._word, DEEP[min(d, len(DEEP)) - 1], self.heat) for d in depths(parents)]
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
                ("tree", likely(p), DEEP[min(d, len(DEEP)) - 1], heat)
                for p, d in zip(draft.likely, levels, strict=True)
            ]
        origins = draft.origins or [""] * count
        grade = f"m{draft.grade}"
        return [
            (f"{found} {origin} {rank}", grade, DEEP[min(d, len(DEEP)) - 1], heat)
            for origin, rank, d in zip(origins, ranks, levels, strict=True)
        ]

    def _weighed(
        self, parents: Sequence[int], signals: Sequence[Signal]
    ) -> tuple[list[int], float, float, bool]:
        """Return the nodes worth their place, and the expected number kept, the cost of their pass, whether they are a chain.

        The expected number does not include the text's own ``_mood``.
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
        """Return the nodes worth their place, the likeliest first, so parents come before children.

        Take the number of likeliest nodes that gains the most. If these are a tree, also try the likeliest path
        alone, since a chain is cheaper to read.
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
