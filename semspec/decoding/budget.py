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
from semspec.decoding.costs import ASK, CHAIN
from semspec.decoding.economy import LOOK, NET
from semspec.decoding.experience import EXPLORE
from semspec.decoding.ledger import CLOSE, Ledger
from semspec.decoding.trim import keep_nodes, shorten
from semspec.types import Draft, Turns

FOREVER = 1 << 30  # tokens: the rest of a problem
ROUGHLY = 5.0  # times what may be lost: reading along is not known to cost more
STRIDE = 8  # tokens at most before a drafter is asked again whose draft was not worth a pass
SHADOWED = 8  # tokens at most that are written in a row to see what a draft that was not sent would have brought
SLEEPS = 8  # tokens in a row after which a drafter has much to read
SLOWER = 0.98  # of what all problems thought of the worth of asking, at each new answer


@dataclass(slots=True, kw_only=True)
class Adaptive(Hindsight):
    """The pace of one problem where tokens are the unit."""

    cap: int = 1
    turns: Turns | None = field(default=None, init=False)
    net: float = field(default=0.0, init=False)  # as in ``Economy``, of this problem
    _alone: int = field(default=1, init=False)
    _vain: int = field(default=0, init=False)  # tokens written alone after the last vain draft

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
        if ledger.affords(loss, wakes, missed):
            self._asked, self._missed = units, missed
        else:
            self._rest(max(loss, 0.0) + missed + (ledger.waking if wakes else 0.0))

    def _missing(self, more: int = 0) -> float:
        """Return what it costs that the target reads again what its drafter has missed, and ``more`` tokens.

        A drafter that looks things up asks for it in a pass before its draft. The prompt is read in any case.
        """
        unread = self._unread + more
        self.economy.missed = price = self._recalling(unread) if unread else 0.0
        return price

    def _go_on_resting(self, row: int) -> None:
        """Make one row of two, where a drafter that looks things up cannot be asked behind the first one."""
        if self.copies and self.watches and row > 1:
            missed, loss = self._missing(row), -self.net
            if not self.economy.may_lose(loss, missed):
                self._rest(max(loss, 0.0) + missed, row)
                self.resting = True

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

    def _rest(self, loss: float, least: int = 1) -> None:
        """Let the target write on, until such a loss can be afforded again; so many tokens at least."""
        economy = self.economy
        pause = economy.pause(loss)
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
        if dear:
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

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        self._settle()
        predicted = self.economy.asking(units, self.chain)
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
        proposal.sent = frozenset(nodes)
        self._hope = hope
        if not self.copies and nodes:
            self._sent(len(nodes))
        _keep(draft, nodes, is_chain)

    def _sent(self, nodes: int) -> None:
        """Note how many nodes of a tree of so many levels are read: always about as many, if it is not cut."""
        share = 0.1 if self.cuts else 1.0
        self.economy.nodes += share * (nodes / max(self._asked, 1) - self.economy.nodes)

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
