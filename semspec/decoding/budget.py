"""Choose a budget for every round by expected gain: whether to draft, how many tokens, and which nodes of a tree.

A kept token is worth the current time per token, and costs what it adds to the target's pass. Before a draft
is made, its length is chosen by the acceptance rates at each depth (``_best``). After it is made, and before
anything random is drawn for the verdict, nodes that are not worth their place are dropped (``_chosen``), if
they are point masses: a lookup's tokens or the likeliest nodes of a tree. The choice depends only on the text
and on earlier rounds, and a lossless rule keeps the target's distribution for any point masses.

*Sampled* drafts are left as they are: their length is fixed before. Dropping a sampled token because it looks
unlikely would leave a selection that is no longer a sample of q (``tests/statistical/test_budget_laws.py``
shows the bias).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from semspec.decoding.budget_hindsight import Hindsight
from semspec.decoding.budget_prospects import DEEP, FIRST_TREES, UNTRIED
from semspec.decoding.costs import ASK, CHAIN
from semspec.decoding.economy import NET, TREES, TRIES
from semspec.decoding.experience import EXPLORE
from semspec.decoding.ledger import CLOSE, Ledger
from semspec.decoding.trim import first_path, keep_nodes, shorten
from semspec.types import Draft, Turns

ROUGHLY = 5.0  # times EXPLORE: tolerance for the predicted cost of reading along where the clock will correct it
STRIDE = 8  # most tokens before asking again a drafter whose draft was not worth a pass
SHADOWED = 8  # most tokens written in a row to see what an unsent draft would have brought
SLEEPS = 8  # tokens in a row after which a drafter has much to catch up on
WAIT = 16  # most tokens between the first tries of a promising model
# number of places in the answers, and tokens between them, at which drafts that are expected to lose are tried in turn
PLACES, APART = 4, 32
PROBE = 4  # least tokens of a chain that such a model drafts
LONGEST_WAIT = 16  # most tokens between drafts that fail in a row, once the model is known
STREAK = 2  # drafts that fail in a row before the next one has to wait
SEVERAL = 8.0  # plain tokens to save up before a drafter that reads along is tried again: enough for several tries in one answer
DEAR = 6.0  # plain tokens: a draft with a larger expected loss is not tried for its promise
SLOWER = 0.98  # like ``economy.NET``, in the estimate that all problems share


@dataclass(frozen=True, slots=True)
class Length:
    """A draft length with its expected outcome."""

    units: int  # tokens of a chain, levels of a tree
    chain: bool
    rate: float = 0.0  # tokens in the time of a plain one
    loss: float = 0.0  # plain tokens
    hope: float = 0.0  # expected number of kept draft tokens


@dataclass(slots=True, kw_only=True, eq=False)
class Adaptive(Hindsight):
    """The pace of one problem where tokens are the unit."""

    cap: int = 1
    turns: Turns | None = field(default=None, init=False)
    net: float = field(default=0.0, init=False)  # as in ``Economy``, for this problem
    _alone: int = field(default=1, init=False)
    _vain: int = field(default=0, init=False)  # tokens written alone after the last useless draft

    @property
    def onward(self) -> bool:
        """True where all problems of a crowd write: rows follow one another, and only a whole round's clock time counts."""
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
            # nobody reads along, since that would add to the cost
            self._alone, self.resting = row, row > 1
            self._go_on_resting(row)
        elif self._ledger.crowded:
            self._decide_together()
        else:
            self._decide_alone()
        return self._asked

    def _begin(self) -> None:
        """Reset the decisions of the previous round."""
        self.resting, self.chain, self._alone = False, False, 1
        self._asked, self._proposal = 0, None
        self._hope = self._missed = 0.0
        self._settle()

    def _decide_alone(self) -> None:
        """Draft the length that pays best, if its loss can be afforded."""
        if self.copies:
            self._decide(self.longest, -self.net)
        else:
            best, loss, self.chain = self._best()
            self._decide(best, loss)

    def _decide(self, units: int, loss: float) -> None:
        """Ask for ``units`` if their expected loss can be afforded; otherwise let the target write on."""
        ledger, wakes = self._ledger, not self.copies
        missed = self._missing()
        self.economy.wanted = max(loss, 0.0) + missed + (ledger.waking if wakes else 0.0)
        if wakes and (wait := self._wait(loss)):
            self._rest(loss, least=wait)
            return
        if wakes and self._saves(loss):
            self._sit_out(loss)
        elif ledger.affords(loss, wakes, missed, anyway=wakes and self._due(loss)):
            self._asked = units
            # by the clock, what a head has missed shows in the time of its draft
            self._missed = missed if self.copies or not ledger.timed else 0.0
        else:
            self._rest(loss, missed + (ledger.waking if wakes else 0.0))

    def _saves(self, loss: float) -> bool:
        """Return whether a drafter that reads along has to sit this answer out: it is expected to lose, and too little is saved up.

        It sees the prompt at no extra cost only if it drafts in the answer's first round. Beginnings are mostly hard to draft,
        so a try there tells little unless others can follow.
        """
        economy = self.economy
        if loss <= 0 or not self.watches or self._ledger.rounds or self._untried:
            return False
        economy.wanted = loss + SEVERAL
        return not economy.may_lose(loss + SEVERAL)

    def _missing(self, more: int = 0) -> float:
        """Return the cost of the target's pass over what the drafter has missed, plus ``more`` tokens.

        It is asked for before the draft. In the first round there is none: the prompt is read in any case. For a head, this is
        what it costs more than ``Ledger.waking``.
        """
        unseen = (self._unseen or 0) + more
        self.economy.missed = price = self._recalling(unseen) if unseen else 0.0
        return price if self.copies else max(price - self._ledger.waking, 0.0)

    def _go_on_resting(self, row: int) -> None:
        """Merge two rows where a lookup drafter could not be afforded after the first one."""
        if self.copies and self.watches and row > 1:
            missed, loss = self._missing(row), -self.net
            if not self.economy.may_lose(loss, missed):
                self._rest(loss, missed, least=row)
                self.resting = True

    def _due(self, loss: float) -> bool:
        """Return whether to try a draft although its expected loss cannot be afforded.

        A few failed first drafts say little about a promising model: it is tried ``TRIES`` times, ``WAIT`` tokens
        apart. And a draft that saved time is followed by another one: texts have easy and hard parts.
        """
        return (self._won or self._overdue) and loss <= DEAR and not self._ledger.crowded

    @property
    def _overdue(self) -> bool:
        """True if a promising model has not been tried for ``WAIT`` tokens, or would see the prompt at no extra cost now."""
        first = self.watches and not self._ledger.rounds
        return self._untried and (first or self._unread >= WAIT)

    def _wait(self, loss: float) -> int:
        """Return how many tokens to write before a draft with this expected loss, because several failed in a row.

        This part of the text may be hard. First tries are spread over the text, and so are later ones over the answers, whose
        beginnings are mostly hard: until drafts have paid off, the first such draft comes after 0, ``APART``, 2 or 3 ``APART``
        tokens, by turns. A drafter that reads along begins at once, since it would have to read the prompt again later.
        """
        failed, wait = self._failed, 0
        if loss > 0 and not self._tried_here and not self.watches and not self.economy.paid_off:
            wait = APART * (self.economy.answers % PLACES)
        elif loss > 0 and failed >= STREAK:
            wait = min(PROBE << (failed - STREAK), LONGEST_WAIT)
            if self._untried:
                wait = WAIT * (failed % STREAK == 0)
        return max(wait - self._unread, 0)

    @property
    def _untried(self) -> bool:
        """True if a model looked promising and the target has read only a few of its drafts."""
        economy = self.economy
        return economy.promising and economy.tries < TRIES and not self._ledger.crowded

    def _decide_together(self) -> None:
        """Draft if all running problems do; otherwise write as they do."""
        ledger = self._ledger
        if row := ledger.together():
            self._alone, self.resting = row, self.watches and ledger.tried
            ledger.asleep |= row >= SLEEPS
            return
        self._asked = self.longest
        if not self.copies:
            units, _, self.chain = self._best()
            self._asked = self._not_far(units)
        self._wake()

    def _wake(self) -> None:
        """Note that the drafter is about to be asked, together with those of all others."""
        self._ledger.wake(not self.copies)

    def _not_far(self, units: int) -> int:
        """Return at most about twice a length that drafts have reached: all problems draft at once, before any can learn from another."""
        tried, word, most = self.economy.beliefs.tried, self._word, units
        while units > PROBE and not tried((word, DEEP[units // 2 - 1])):
            units //= 2
        if units < most:
            chances = (self._chance(depth, self.chain) for depth in range(1, units + 1))
            self._hope = sum(accumulate(chances, mul))
        return units

    def _best(self) -> tuple[int, float, bool]:
        """Return the length with the best token rate, its expected loss in plain tokens, and whether it is a chain.

        A tree drafter may draft a chain instead, which is cheaper to make and to read.
        """
        found = self._best_length(self.longest, chain=False)
        if self.longest_chain:
            found = self._shape(found, self._best_length(self.longest_chain, chain=True))
        self._hope = found.hope
        self.economy.promising |= not self.economy.tries and found.loss <= 0
        return found.units, found.loss, found.chain

    def _best_length(self, longest: int, chain: bool) -> Length:
        """Return the length of a tree or a chain with the best token rate; in a crowd, drafts that went alike share it."""
        if self._mood < 1 or not self._ledger.crowded:
            return self._search(longest, chain)
        same = longest, chain, self.heat
        return self.economy.alike(same, lambda: self._search(longest, chain))

    def _search(self, longest: int, chain: bool) -> Length:
        """Compare the lengths of a tree or a chain."""
        mood, rate = self._mood, 0.0
        best = probe = 1, 0.0, 0.0
        reached, hope = 1.0, 0.0
        for length in range(1, longest + 1):
            reached *= self._chance(length, chain)
            hope += reached
            cost, gained = self._cost(length, chain), 1 + mood * hope
            if gained > rate * cost:
                rate, best = gained / cost, (length, cost - gained, hope)
            if length == PROBE or length == longest < PROBE:
                probe = length, cost - gained, hope
        # a draft that is expected to lose is made to learn, and a longer one tells more for little
        if best[1] > 0 and self._untried and (chain or not self._branches):
            best = max(best, probe)
        units, loss, hoped = best
        return Length(units, chain, (1 + mood * hoped) / self._cost(units, chain), loss, hoped)

    def _shape(self, tree: Length, chain: Length) -> Length:
        """Return the better one of a tree and a chain.

        Until a few trees were read, a chain that pays comes first. A tree is tried instead if it would be better with all
        its levels right, and its expected loss can be paid from what drafts have gained: what a run may lose at its start
        is for chains.
        """
        economy = self.economy
        if economy.trees >= FIRST_TREES:
            return tree if tree.rate >= chain.rate else chain
        if chain.loss <= 0 and economy.beliefs.tried(("chain",)) < UNTRIED:
            return chain
        if tree.loss > 0 and economy.bank - tree.loss < economy.allowance:
            return chain
        deepest = self.longest
        could = (1 + deepest) / self._cost(deepest, chain=False)
        return tree if could > chain.rate and economy.may_lose(tree.loss) else chain

    def _rest(self, loss: float, missed: float = 0.0, least: int = 1) -> None:
        """Let the target write at least ``least`` tokens, until this loss and reading what was ``missed`` can be afforded."""
        economy, gap = self.economy, self._gap
        pause = economy.pause(max(loss, 0.0) + missed)
        if self._untried:
            pause = min(pause, WAIT)
        self._alone = tokens = max(pause, least)
        self._ledger.asleep |= tokens >= SLEEPS
        if not self.watches or tokens < 2:
            self.resting = bool(self._unseen)
            return
        dear = pause > 1 and economy.bank < 0
        if not dear:
            reading_along = economy.writing(tokens, watched=True) - economy.writing(tokens)
            catching_up = self._recalling(gap + tokens)
            if self._unseen:  # what comes now is of no use to it before it has read that
                catching_up -= self._recalling(gap)
                reading_along = catching_up
            self.resting = bool(self._unseen) or catching_up < reading_along
            # where the clock counts the real cost of reading along, be more tolerant
            limit = EXPLORE * (ROUGHLY if self._ledger.timed else 1)
            dear = pause > 1 and min(reading_along, catching_up) > limit * tokens
        if dear and not self._untried:
            self._sit_out(loss)

    def _sit_out(self, loss: float) -> None:
        """Let the target write on and the drafter not read along, until its return can be afforded or the load may have changed.

        What it then reads is worth several tries.
        """
        tries = 0.0 if self.copies else SEVERAL
        self._alone = self.economy.absence(loss + tries, lambda n: self._recalling(self._gap + n))
        self.resting = True
        self._ledger.asleep = True

    def _stride(self) -> int:
        """Return how many tokens to write before a lookup drafter is asked again.

        Each question costs ``extra``; each token of delay costs what one copied token saves.
        """
        economy = self.economy
        extra = self._lone - 1 + economy.asking(self._asked)
        saved = max(1 - economy.rate, 0.1) * economy.found
        return max(1, min(int(math.sqrt(2 * max(extra, 0.0) / saved)), STRIDE))

    @property
    def _lone(self) -> float:
        """The cost of a token that the target writes in a round of its own."""
        starting = self.economy.starting
        if starting and self._ledger.timed and not self.watches:
            return 1 + starting
        return self._price("write", 1)

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
        # a lookup drafter's passes only read what it has missed, which has its own price
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
        if not self.cuts or draft.probs is not None:  # sampled drafts are not cut
            if draft.parents is not None:
                self._sent(len(draft.tokens))
            return
        nodes, hope, price, is_chain = self._weighed(proposal.parents, proposal.signals)
        if not self._found(self._mood * hope, price, nodes):
            nodes, hope = [], 0.0
            if self._overdue:  # a try only counts if the target reads it
                nodes, is_chain = first_path(proposal.parents), True
                self._vain, self._alone = 0, 1
        proposal.sent = frozenset(nodes)
        self._hope = hope
        if not self.copies:  # an unsent tree counts with the average size
            self._sent(len(nodes) or self.economy.nodes * self._asked)
        _keep(draft, nodes, is_chain)

    def _sent(self, nodes: float) -> None:
        """Note how many nodes of a tree are read; without cuts, the number hardly varies."""
        if self.economy.trees < TREES:  # each of the first trees changes the price of the next
            self._prices.clear()
        self.economy.sent(nodes / max(self._asked, 1))

    def _found(self, gain: float, price: float, nodes: Sequence[int] = ()) -> bool:
        """Return whether the draft is sent at all, and note what asking for it was worth."""
        economy, lone = self.economy, self._lone
        without = lone if self.net > 0 or not self.copies else 1.0
        sends = bool(nodes) and economy.rate * gain - price > -without
        if self.copies:
            worth = (1 + gain - price if sends else 1 - lone) - economy.asking(self._asked)
            self.net = NET * self.net + (1 - NET) * worth
            economy.net = SLOWER * economy.net + (1 - SLOWER) * worth
            if not sends and self.net <= 0 and not self._ledger.crowded:
                # where copies save time, every token of delay is expensive
                self._rest(-self.net, least=self._shadowed() if economy.rate > CLOSE else 1)
            elif not sends:
                self._alone = self._stride()
            economy.looked(bool(sends), self._alone)
        elif sends:
            self._vain = 0
        else:  # made for nothing; the next one may be too
            self._vain = self._alone = min(2 * max(self._vain, 1), STRIDE)
            self._ledger.asleep |= self._alone >= SLEEPS
        return sends

    def _shadowed(self) -> int:
        """Return how many tokens to write after an unsent draft, to compare it with them without paying for a pass."""
        return min(len(self._proposal.tokens), SHADOWED) if self._proposal else self._stride()


def _keep(draft: Draft, nodes: Sequence[int], is_chain: bool) -> None:
    """Keep only ``nodes``, given in ascending order; store them as a chain if they are one."""
    if draft.parents is None:
        shorten(draft, len(nodes))
    elif len(nodes) < len(draft.tokens):
        keep_nodes(draft, nodes)
    if is_chain:
        draft.parents = None
