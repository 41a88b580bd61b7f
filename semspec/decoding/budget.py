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
from collections.abc import Sequence
from dataclasses import dataclass, field

from semspec.decoding.budget_hindsight import Hindsight
from semspec.decoding.budget_prospects import UNTRIED
from semspec.decoding.costs import ASK, CHAIN
from semspec.decoding.economy import LOOK, NET, TREES, TRIES
from semspec.decoding.experience import EXPLORE
from semspec.decoding.ledger import CLOSE, Ledger
from semspec.decoding.trim import first_path, keep_nodes, shorten
from semspec.types import Draft, Turns

FOREVER = 1 << 30  # tokens: the rest of a problem
ROUGHLY = 5.0  # times what may be lost: reading along is not known to cost more
STRIDE = 8  # tokens at most before a drafter is asked again whose draft was not worth a pass
SHADOWED = 8  # tokens at most that are written in a row to see what a draft that was not sent would have brought
SLEEPS = 8  # tokens in a row after which a drafter has much to read
FIRST_TREES = 3.0  # trees that are read before a tree is held against a chain by what they brought
WAIT = 32  # tokens at most between the first tries of a model whose drafts may pay
DEAR = 6.0  # plain tokens: a draft that is expected to lose more is not tried for its promise
SLOWER = 0.98  # of what all problems thought of the worth of asking, at each new answer


@dataclass(frozen=True, slots=True)
class Length:
    """A length of a draft, and what is expected of it."""

    units: int  # tokens of a chain, levels of a tree
    chain: bool
    rate: float = 0.0  # tokens in the time of a plain one
    loss: float = 0.0  # plain tokens
    hope: float = 0.0  # drafted tokens that are kept


@dataclass(slots=True, kw_only=True)
class Adaptive(Hindsight):
    """The pace of one problem where tokens are the unit."""

    cap: int = 1
    turns: Turns | None = field(default=None, init=False)
    net: float = field(default=0.0, init=False)  # as in ``Economy``, of this problem
    _alone: int = field(default=1, init=False)
    _vain: int = field(default=0, init=False)  # tokens written alone after the last vain draft

    @property
    def onward(self) -> bool:
        """True in a crowd in which all write: its rows follow one another, and only the clock of a whole round counts."""
        return not self._asked and self._ledger.crowded and self._alone >= SLEEPS

    def __post_init__(self) -> None:
        self.net = self.economy.net
        self._ledger = Ledger(self.economy, self.watches, self.copies)

    # ---- before a draft --------------------------------------------------------------------------

    def units(self) -> int:
        self._begin()
        self._ledger.begin()
        if not self.economy.token:  # nothing was measured yet
            self._asked = self.longest
        elif row := self._ledger.row():
            # nobody reads along: that would cost something
            self._alone, self.resting = row, row > 1
            self._go_on_resting(row)
        elif self._ledger.crowded:
            self._decide_together()
        else:
            self._decide_alone()
        return self._asked

    def _begin(self) -> None:
        """Forget what was decided in the round before."""
        self.resting, self.chain, self._alone = False, False, 1
        self._asked, self._proposal = 0, None
        self._hope = self._missed = 0.0
        self._settle()

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
        missed = self._missing()
        if ledger.affords(loss, wakes, missed, anyway=wakes and self._due(loss)):
            self._asked, self._missed = units, missed
        else:
            self._rest(max(loss, 0.0) + missed + (ledger.waking if wakes else 0.0))

    def _missing(self, more: int = 0) -> float:
        """Return what it costs that the target reads again what its drafter has missed, and ``more`` tokens.

        A drafter that looks things up asks for it in a pass before its draft. The prompt is read in any case.
        """
        unseen = self._unseen + more
        self.economy.missed = price = self._recalling(unseen) if unseen else 0.0
        return price

    def _go_on_resting(self, row: int) -> None:
        """Make one row of two, where a drafter that looks things up cannot be asked behind the first one."""
        if self.copies and self.watches and row > 1:
            missed, loss = self._missing(row), -self.net
            if not self.economy.may_lose(loss, missed):
                self._rest(max(loss, 0.0) + missed, row)
                self.resting = True

    def _due(self, loss: float) -> bool:
        """Tell whether a draft is to be tried that is expected to lose so much, though that cannot be afforded.

        A few first drafts that fail say little of a model that looked promising: it is tried ``TRIES`` times, ``WAIT``
        tokens apart.
        """
        return self._untried and loss <= DEAR and self._unread >= WAIT

    @property
    def _untried(self) -> bool:
        """True where a model's drafts were promising, and the target has read but a few of them."""
        economy = self.economy
        return economy.promising and economy.tries < TRIES and not self._ledger.crowded

    def _decide_together(self) -> None:
        """Draft where all do that are under way, else write as they do."""
        ledger, wakes = self._ledger, not self.copies
        if row := ledger.together():
            self._alone, self.resting = row, self.watches and ledger.tried
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
        found = self._best_length(self.longest, chain=False)
        if self.longest_chain:
            found = self._shape(found, self._best_length(self.longest_chain, chain=True))
        self._hope = found.hope
        self.economy.promising |= not self.economy.tries and found.loss <= 0
        return found.units, found.loss, found.chain

    def _best_length(self, longest: int, chain: bool) -> Length:
        """Return the length of a tree or a chain with the best rate of tokens."""
        mood, rate = self._mood, 0.0
        best, reached, hope = (1, 0.0, 0.0), 1.0, 0.0
        for length in range(1, longest + 1):
            reached *= self._chance(length, chain)
            hope += reached
            cost, gained = self._cost(length, chain), 1 + mood * hope
            if gained > rate * cost:
                rate, best = gained / cost, (length, cost - gained, hope)
        units, loss, hoped = best
        return Length(units, chain, rate, loss, hoped)

    def _shape(self, tree: Length, chain: Length) -> Length:
        """Return the better of a tree and a chain in its place.

        Of a tree nothing is known before a few were read. A chain that pays comes first; a tree is tried in its place
        where it would be better if all its levels were right, and what it may lose can be afforded.
        """
        economy = self.economy
        if economy.trees >= FIRST_TREES:
            return tree if tree.rate >= chain.rate else chain
        if chain.loss <= 0 and economy.beliefs.tried(("chain",)) < UNTRIED:
            return chain
        deepest = self.longest
        could = (1 + deepest) / self._cost(deepest, chain=False)
        return tree if could > chain.rate and economy.may_lose(tree.loss) else chain

    def _rest(self, loss: float, least: int = 1) -> None:
        """Let the target write on, until such a loss can be afforded again; so many tokens at least."""
        economy = self.economy
        pause = economy.pause(loss)
        if self._untried:
            pause = min(pause, WAIT)
        self._alone = tokens = max(pause, least)
        self._ledger.asleep |= tokens >= SLEEPS
        if not self.watches or tokens < 2:
            return
        dear = pause > 1 and economy.bank < 0
        if not dear:
            reading_along = economy.writing(tokens, watched=True) - economy.writing(tokens)
            catching_up = self._recalling(tokens)
            self.resting = catching_up < reading_along
            # what reading along has really cost is counted, where it can be
            limit = EXPLORE * (ROUGHLY if self._ledger.timed else 1)
            dear = pause > 1 and min(reading_along, catching_up) > limit * tokens
        if dear and not self._untried:
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

    @property
    def gives_way(self) -> bool:
        return self._ledger.crowded

    def alone(self, left: int) -> int:
        return max(1, min(self._alone, left))

    # ---- after a draft ---------------------------------------------------------------------------

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        self._settle()
        predicted = self._asking(units, self.chain)
        # who looks things up asks for what it has missed alone, which has a price of its own
        reading = passes if self.copies else 0.0
        self._ledger.asked(CHAIN if self.chain else ASK, units, seconds, predicted, reading)

    def cut(self, draft: Draft) -> None:
        self._settle()
        if not self._asked or not self.economy.token:
            return
        if not draft.tokens:
            self._found(0.0, 0.0)
            return
        self._proposal = proposal = self._proposed(draft)
        if self.chain:
            return
        if not self.cuts or draft.probs is not None:  # drawn, if not by every draft of its drafter
            if draft.parents is not None:
                self._sent(len(draft.tokens))
            return
        nodes, hope, price, is_chain = self._weighed(proposal.parents, proposal.signals)
        if not self._found(self._mood * hope, price, nodes):
            nodes, hope = [], 0.0
            if self._due(0.0):  # only what the target reads is a try
                nodes, is_chain = first_path(proposal.parents), True
                self._vain, self._alone = 0, 1
        proposal.sent = frozenset(nodes)
        self._hope = hope
        if not self.copies:  # of a tree of which nothing is sent no size is learned
            self._sent(len(nodes) or self.economy.nodes * self._asked)
        _keep(draft, nodes, is_chain)

    def _sent(self, nodes: float) -> None:
        """Note how many nodes of a tree of so many levels are read: always about as many, if it is not cut."""
        if self.economy.trees < TREES:  # each one tells much of what the next would cost
            self._prices.clear()
        self.economy.sent(nodes / max(self._asked, 1))

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
                # where copies save time, each token by which one begins later is dear
                self._rest(-self.net, self._shadowed() if economy.rate > CLOSE else 1)
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


def _keep(draft: Draft, nodes: Sequence[int], is_chain: bool) -> None:
    """Leave these nodes of a draft, given in ascending order; as a chain where they are one."""
    if draft.parents is None:
        shorten(draft, len(nodes))
    elif len(nodes) < len(draft.tokens):
        keep_nodes(draft, nodes)
    if is_chain:
        draft.parents = None
