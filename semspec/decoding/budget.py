"""A budget for every round, by expected gain: whether to draft, how many tokens, and which nodes of a tree.

A token that is kept is worth the time that a token takes at present, and costs what it adds to the target's
pass. Before a draft is made, its length is chosen by the chances of its depths (``_best``). After it is
made, and before anything random is drawn for the verdict, those of its nodes stay whose chance of being
kept is worth their place (``_chosen``), where they are point masses: what a drafter looked up, or the
likeliest nodes of a tree. Their choice depends on the text and on earlier rounds alone, and a lossless rule
keeps the target's law whatever point masses it is given.

Drafts that were *drawn* are left as they are: their length is fixed before. To drop a drawn token because
that very token looks unlikely would leave a selection that is no sample of q any more
(``tests/statistical/test_budget_laws.py`` shows what becomes of the law then).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from semspec.decoding.beliefs import Signal, deep, likely
from semspec.decoding.costs import ASK, CHAIN
from semspec.decoding.economy import LOOK, NET, Economy
from semspec.decoding.experience import EXPLORE
from semspec.decoding.ledger import CLOSE, Ledger
from semspec.decoding.trim import depths, first_path, keep_nodes, shared, shorten
from semspec.types import Draft, Round, Turns

FOREVER = 1 << 30  # tokens: the rest of a problem
UNLIKELY = 0.002  # chance of a node below which no more nodes are looked at
# tokens of chains in a tree's place, below which they are taken to be as right as the tree
UNTRIED = 48
ROUGHLY = 5.0  # times what may be lost: reading along is not known to cost more
STRIDE = 8  # tokens at most before a drafter is asked again whose draft was not worth a pass
SHADOWED = 8  # tokens at most that are written in a row to see what a draft that was not sent would have brought
SLEEPS = 8  # tokens in a row after which a drafter has much to read
REFRESH = 8  # rounds after which prices are looked up anew
SLACK = 1.5  # tokens by which late drafts may have disappointed before that counts
FAILED = 4.0  # tokens at most by which one draft may have disappointed: it failed in one place
LATE = 0.995  # of what was kept and expected before, at each token
SLOWER = 0.98  # of what all problems thought of the worth of asking, at each new answer
_DEEP = [deep(depth) for depth in range(1, 1025)]


@dataclass(slots=True)
class Proposal:
    """A draft as its drafter made it, and what is known of its nodes."""

    tokens: list[int]
    parents: Sequence[int]
    signals: list[Signal]
    sent: frozenset[int] | None = None  # the nodes that the target read; None: all


@dataclass(slots=True, kw_only=True)
class Adaptive:
    """The pace of one problem where tokens are the unit."""

    economy: Economy
    longest: int  # units of a draft at most: tokens of a chain, levels of a tree
    longest_chain: int = 0  # of a drafter that grows trees: tokens of a chain in a tree's place
    greedy: bool = False  # the target writes the likeliest tokens: a tree's first path is a chain
    cap: int = 1
    copies: bool = False  # the drafter looks up what is there, however long: only its match tells
    cuts: bool = False  # its drafts are point masses
    watches: bool = False  # it reads along while the target writes
    exact: bool = (
        False  # the rule is lossless: what it would have kept shows in what the target wrote
    )
    resting: bool = field(default=False, init=False)
    chain: bool = field(default=False, init=False)  # this round's draft is one in a tree's place
    turns: Turns | None = field(default=None, init=False)
    net: float = field(default=0.0, init=False)  # as in ``Economy``, of this problem
    # how the draft before went: 0 none of it was kept, 2 all of it
    heat: str = field(default="1", init=False)
    # tokens of late drafts that were kept, and that were expected to be: a text may be harder than others
    _kept: float = field(default=0.0, init=False)
    _hoped: float = field(default=0.0, init=False)
    _hope: float = field(default=0.0, init=False)  # of this round's draft
    _alone: int = field(default=1, init=False)
    _vain: int = field(default=0, init=False)  # tokens written alone after the last vain draft
    _asked: int = field(default=0, init=False)  # units, in this round
    _proposal: Proposal | None = field(default=None, init=False)
    _ledger: Ledger = field(init=False)
    _prices: dict[tuple[str, int], float] = field(default_factory=dict, init=False)
    _company: int = field(default=0, init=False)  # for which these prices hold

    def __post_init__(self) -> None:
        self.net = self.economy.net
        self._ledger = Ledger(self.economy, self.watches)

    # ---- before a draft --------------------------------------------------------------------------

    def units(self) -> int:
        self._begin()
        self._ledger.begin()
        if not self.economy.token:  # nothing was measured yet
            self._asked = self.longest
        elif row := self._ledger.row():
            # nobody reads along: that would cost something
            self._alone, self.resting = row, row > 1
        elif self._ledger.crowded:
            self._decide_together()
        else:
            self._decide_alone()
        return self._asked

    def _begin(self) -> None:
        """Forget what was decided in the round before."""
        self.resting, self.chain, self._alone = False, False, 1
        self._asked, self._proposal = 0, None
        self._hope = 0.0
        if self._company != self.economy.company:
            self._company = self.economy.company
            self._prices.clear()

    def _decide_alone(self) -> None:
        """Draft as much as pays, if that can be afforded."""
        if self.copies:
            self._decide(self.longest, -self.net)
        else:
            best, loss, self.chain = self._best()
            self._decide(best, loss)

    def _decide(self, units: int, loss: float) -> None:
        """Ask for so many units if what they are expected to lose can be afforded; else let the target write on."""
        ledger, wakes = self._ledger, not self.copies
        if ledger.affords(loss, wakes):
            self._asked = units
        else:
            self._rest(max(loss, 0.0) + (ledger.waking if wakes else 0.0))

    def _decide_together(self) -> None:
        """Draft where all do that are under way, else write as they do."""
        ledger, wakes = self._ledger, not self.copies
        if row := ledger.together():
            self._alone, self.resting = row, self.watches
            ledger.asleep |= row >= SLEEPS
            return
        self._asked = self.longest
        if wakes:
            self._asked, _, self.chain = self._best()
        ledger.wake(wakes)

    def _best(self) -> tuple[int, float, bool]:
        """Return the length with the best rate of tokens, what it is expected to lose (plain tokens), and its shape.

        A drafter that grows trees may draft a chain in a tree's place (True), which is cheaper to make and to read.
        """
        mood = self._mood
        best, most, loss, as_chain = 1, 0.0, 0.0, False
        shapes = [(self.longest, False)] + [(self.longest_chain, True)] * bool(self.longest_chain)
        for longest, chain in shapes:
            reached, hope = 1.0, 0.0
            for length in range(1, longest + 1):
                reached *= self._chance(length, chain)
                hope += reached
                cost, gained = self._cost(length, chain), 1 + mood * hope
                if gained > most * cost:
                    best, most, loss, as_chain = length, gained / cost, cost - gained, chain
                    self._hope = hope
        return best, loss, as_chain

    def _chance(self, depth: int, chain: bool) -> float:
        """Return the chance that a draft goes on being right at a depth: a tree as often as its first path, at least."""
        chance, deep = self.economy.beliefs.chance, _DEEP[depth - 1]
        if chain:
            found = chance(("chain", deep, self.heat))
            few = self.economy.beliefs.tried(("chain",)) < UNTRIED
            return max(found, chance(("before", deep, self.heat))) if few else found
        found = chance(("before", deep, self.heat))
        if self.longest_chain and self.greedy:
            found = max(found, chance(("chain", deep, self.heat)))
        return found

    @property
    def _mood(self) -> float:
        """Return by how much this text keeps less of late drafts than was expected: at most 1."""
        return min(1.0, (self._kept + SLACK) / (self._hoped + SLACK))

    def _cost(self, length: int, chain: bool) -> float:
        """Return what a draft of this length costs, and its pass."""
        key = "chain" if chain else "draft", length
        if (known := self._prices.get(key)) is None:
            economy = self.economy
            nodes = 1.0 if chain else economy.nodes
            known = economy.asking(length, chain) + economy.reading(1 + length * nodes, nodes > 1)
            self._prices[key] = known = max(known, 1e-9)
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

    def _rest(self, loss: float) -> None:
        """Let the target write on, until such a loss can be afforded again."""
        economy = self.economy
        self._alone = tokens = economy.pause(loss)
        self._ledger.asleep |= tokens >= SLEEPS
        if not self.watches or tokens < 2:
            return
        reading_along = economy.writing(tokens, watched=True) - economy.writing(tokens)
        catching_up = economy.reading(tokens)
        self.resting = catching_up < reading_along
        # what reading along has really cost is counted, where it can be
        limit = EXPLORE * (ROUGHLY if self._ledger.timed else 1)
        if economy.bank < 0 or min(reading_along, catching_up) > limit * tokens:
            self._alone, self.resting = (LOOK if economy.costs.load else FOREVER), True

    def _stride(self) -> int:
        """Return how many tokens to write before a drafter that looks things up is asked again.

        Each question costs ``extra``; each token by which a copy begins later costs what a copied token saves.
        """
        economy = self.economy
        extra = self._price("write", 1) - 1 + economy.asking(self._asked)
        saved = max(1 - economy.rate, 0.1) * economy.found
        return max(1, min(int(math.sqrt(2 * max(extra, 0.0) / saved)), STRIDE))

    def unit_cap(self) -> int:
        return self.cap

    def alone(self, left: int) -> int:
        return max(1, min(self._alone, left))

    # ---- after a draft ---------------------------------------------------------------------------

    def asked(self, units: int, seconds: float) -> None:
        predicted = self.economy.asking(units, self.chain)
        self._ledger.asked(CHAIN if self.chain else ASK, units, seconds, predicted)

    def cut(self, draft: Draft) -> None:
        if not self._asked or not self.economy.token:
            return
        if not draft.tokens:
            self._found(0.0, 0.0)
            return
        parents = draft.parents if draft.parents is not None else range(-1, len(draft.tokens) - 1)
        signals = self._signals(draft, parents)
        self._proposal = Proposal(draft.tokens, parents, signals)
        if self.chain:
            return
        if not self.cuts or draft.probs is not None:  # drawn, if not by every draft of its drafter
            if draft.parents is not None:
                self._sent(len(draft.tokens))
            return
        nodes, hope, price, is_chain = self._weighed(parents, signals)
        if not self._found(self._mood * hope, price, nodes):
            nodes, hope = [], 0.0
        self._proposal.sent = frozenset(nodes)
        self._hope = hope
        if not self.copies and nodes:
            self._sent(len(nodes))
        _keep(draft, nodes, is_chain)

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

    def _sent(self, nodes: int) -> None:
        """Note how many nodes of a tree of so many levels are read: always about as many, if it is not cut."""
        share = 0.1 if self.cuts else 1.0
        self.economy.nodes += share * (nodes / max(self._asked, 1) - self.economy.nodes)

    def _signals(self, draft: Draft, parents: Sequence[int]) -> list[Signal]:
        """Return what is known of each node."""
        if self.chain or not self.cuts:
            word = "chain" if self.chain else "before"
            words = [(word, _DEEP[min(d, 1024) - 1], self.heat) for d in depths(parents)]
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
                ("tree", likely(p), _DEEP[min(d, 1024) - 1], heat)
                for p, d in zip(draft.likely, levels, strict=True)
            ]
        origins = draft.origins or [""] * count
        grade = f"m{draft.grade}"
        return [
            (f"{found} {origin} {rank}", grade, _DEEP[min(d, 1024) - 1], heat)
            for origin, rank, d in zip(origins, ranks, levels, strict=True)
        ]

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

    def _found(self, gain: float, price: float, nodes: Sequence[int] = ()) -> bool:
        """Tell whether what was found is sent, or none of it, and note what it was worth to have asked."""
        economy, lone = self.economy, self._price("write", 1)
        without = lone if self.net > 0 or not self.copies else 1.0
        sends = bool(nodes) and economy.rate * gain - price > -without
        if self.copies:
            worth = (1 + gain - price if sends else 1 - lone) - economy.asking(self._asked)
            self.net = NET * self.net + (1 - NET) * worth
            economy.net = SLOWER * economy.net + (1 - SLOWER) * worth
            if not sends and self.net <= 0 and not self._ledger.crowded:
                self._rest(-self.net)
                if (
                    economy.rate > CLOSE
                ):  # where copies save time, each token by which one begins later is dear
                    self._alone = max(self._alone, self._shadowed())
            elif not sends:
                self._alone = self._stride()
            economy.looked(bool(sends), self._alone)
        elif sends:
            self._vain = 0
        else:  # it was made for nothing, and the next one may be as well
            self._vain = self._alone = min(2 * max(self._vain, 1), STRIDE)
            self._ledger.asleep |= self._alone >= SLEEPS
        return sends

    def _shadowed(self) -> int:
        """Return how many tokens to write behind a draft that is not sent: it is held against them, and no pass is paid for it."""
        return min(len(self._proposal.tokens), SHADOWED) if self._proposal else self._stride()

    # ---- after a round ---------------------------------------------------------------------------

    def over(self) -> None:
        self._ledger.over()

    def observe(self, done: Round) -> None:
        self._ledger.close(done, self._spent(done), bool(self._asked), self.resting)
        self._look_back(done)

    def _spent(self, done: Round) -> float:
        """Return the plain tokens of time that a round is expected to have taken."""
        economy, tokens = self.economy, done.tokens
        if self._ledger.rounds % REFRESH == REFRESH - 1:
            self._prices.clear()
        spent = economy.asking(self._asked, self.chain) if self._asked else 0.0
        if done.drafted:
            spent += self._price("read" if done.parents is None else "tree", 1 + len(done.drafted))
        else:
            spent += economy.writing(len(tokens), self.watches and not self.resting)
        return spent

    def _look_back(self, done: Round) -> None:
        """Learn what became of a draft."""
        tokens = done.tokens
        # answers that begin together begin alike: what becomes of their first drafts is one event, and not many
        if self._ledger.crowded and self._ledger.rounds == 1:
            return
        fades = LATE ** len(tokens)
        self._kept, self._hoped = fades * self._kept, fades * self._hoped
        if done.drafted:
            kept = len(done.kept)
            self._kept += kept
            self._hoped += min(self._hope, kept + FAILED)
        if self._proposal is not None:
            self._learn(self._proposal, tokens)

    def _learn(self, proposal: Proposal, text: Sequence[int]) -> None:
        """Hold the proposal against what came, as far as that can be known."""
        children = defaultdict[int, list[int]](list)
        for node, parent in enumerate(proposal.parents):
            children[parent].append(node)
        tried: list[tuple[Signal, bool]] = []
        at, length = -1, 0
        for token in text:
            followed = -1
            for node in children[at]:
                if proposal.sent is not None and node not in proposal.sent and not self.exact:
                    continue
                same = proposal.tokens[node] == token
                tried.append((proposal.signals[node], same))
                followed = node if same else followed
            if followed < 0:
                break
            at, length = followed, length + 1
        if not self.copies and self.cuts and not self.chain:
            # a tree: how deep it was right, whichever node it was
            deepest = max(depths(proposal.parents))
            words = (("before", _DEEP[d], self.heat) for d in range(min(length + 1, deepest)))
            tried += [(signal, d < length) for d, signal in enumerate(words)]
            if self.longest_chain and self.greedy:
                tried += self._first_path(proposal, text)
        elif not self.cuts and tried and proposal.parents != range(-1, len(proposal.tokens) - 1):
            # siblings are one level: it was right if any of them was
            levels = {signal: False for signal, _ in tried}
            for signal, same in tried:
                levels[signal] |= same
            tried = list(levels.items())
        self.economy.beliefs.learn(tried)
        whole = length == len(text) or not children[at]
        self.heat = "2" if length and whole else "1" if length else "0"

    def _first_path(self, proposal: Proposal, text: Sequence[int]) -> Iterator[tuple[Signal, bool]]:
        """Yield what would have become of a chain: a tree's first path."""
        path = [proposal.tokens[node] for node in first_path(proposal.parents)]
        right = shared(path, text)
        for depth in range(min(right + 1, len(path), len(text))):
            yield ("chain", _DEEP[depth], self.heat), depth < right


def _keep(draft: Draft, nodes: Sequence[int], is_chain: bool) -> None:
    """Leave these nodes of a draft, given in ascending order; as a chain where they are one."""
    if draft.parents is None:
        shorten(draft, len(nodes))
    elif len(nodes) < len(draft.tokens):
        keep_nodes(draft, nodes)
    if is_chain:
        draft.parents = None
