"""The budget of whole steps that a lookup copies: whether to ask for one, and whether to read it.

A lookup is asked before each step while that pays on average: what it brings, less what asking, reading along and reading its
copies cost, by the clock where there is one (``ledger``). Where it does not pay, the target writes several steps in a row and
nobody reads along, until the loss can be afforded again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from semspec.decoding.budget_prospects import caught_up
from semspec.decoding.budget_steps import SHORTEST, AdaptiveSteps
from semspec.decoding.costs import ASK
from semspec.decoding.economy import ALLOWANCE, NET
from semspec.decoding.experience import EXPLORE
from semspec.decoding.ledger import Ledger
from semspec.decoding.trim import shorten
from semspec.types import Draft, Round

COPIES = 16.0  # plain tokens that a run may lose at its start: a failed copy costs some four


@dataclass(slots=True, kw_only=True, eq=False)
class CopiedSteps(AdaptiveSteps):
    """The pace of one problem whose steps are looked up; they are point masses."""

    watches: bool = False  # the drafter reads along while the target writes
    recalls: bool = True  # before a draft, it reads all that it has missed, not only the newest
    _ledger: Ledger = field(init=False)
    # context length that it has read; None: no round yet
    _seen: int | None = field(default=None, init=False)
    # cost of what it has to read before this round's copy
    _missed: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.economy, self.watches, copies=True)

    @property
    def _unproven(self) -> bool:
        return False  # each copy is tried by the quality of its match

    # ---- before a draft --------------------------------------------------------------------------

    def _choose(self) -> None:
        self._missed = 0.0
        self._ledger.begin()
        if not self.economy.token:
            self._asked = 1  # nothing was measured yet
        elif row := self._ledger.row():
            self._rest(row)
        else:
            self._look_up()

    def _look_up(self) -> None:
        """Ask for a copy if the expected loss can be afforded; otherwise let the target write."""
        economy, context = self.economy, self._context or 0
        if not economy.banks and not economy.costs.fixed:
            economy.allowance = max(economy.allowance, COPIES)
        loss, unseen = -economy.net, context - (context if self._seen is None else self._seen)
        if self.watches and unseen:
            economy.missed = self._missed = self._recalling(unseen)
        economy.wanted = max(loss, 0.0) + self._missed
        if self._affords(loss, self._missed):
            self._asked, self._seen = 1, context
            return
        pause = economy.pause(max(loss, 0.0) + self._missed)
        if self.watches and self._recalling(pause) > EXPLORE * pause:
            pause = economy.absence(loss, lambda n: self._recalling(unseen + n))
        self._rest(pause)

    def _rest(self, tokens: int) -> None:
        """Let the target write so many tokens, and nobody read along."""
        self._alone = max(1, math.ceil(tokens / max(self.economy.written, SHORTEST)))
        if self.watches:
            self.resting, self._seen = True, self._seen or 0

    def _affords(self, loss: float, missed: float = 0.0) -> bool:
        """Return whether a copy with this expected loss may be tried, and pay for it."""
        if self._ledger.timed:
            return self._ledger.affords(loss, False, missed)
        return AdaptiveSteps._affords(self, loss, missed)

    def _recalling(self, missed: int) -> float:
        """Return the cost of a pass over the last token and what the drafter has missed."""
        return self.economy.reading(caught_up(missed, self.recalls))

    # ---- after a draft ---------------------------------------------------------------------------

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        # its passes only read what it has missed, which has its own price
        self._ledger.asked(ASK, units, seconds, self.economy.asking(units), passes)

    def cut(self, draft: Draft) -> None:
        """Drop steps that are not worth a pass by the quality of their match."""
        AdaptiveSteps.cut(self, draft)
        economy = self.economy
        if not draft.tokens or not (economy.token and economy.written):
            return
        self._signal = (f"{draft.found[:3]} m{draft.grade}", self.heat)
        length, most, loss = 0, 0.0, 0.0
        for count, end in enumerate(draft.ends, start=1):
            gained, spent = self._expected(count, end / count)
            if gained - spent > most or (count == 1 and gained <= spent):
                length, most, loss = count, max(gained - spent, 0.0), spent - gained
        sends = self._affords(-most) if most > 0 else self._explores(loss)
        shorten(draft, draft.ends[length - 1] if sends else 0)

    def _explores(self, loss: float) -> bool:
        """Return whether a copy that should lose is tried, and count its loss: these cost ``EXPLORE`` of the time."""
        if self.economy.vain + loss > ALLOWANCE or not self._affords(loss):
            return False
        self.economy.vain += loss
        return True

    def over(self) -> None:
        self._ledger.over()

    def _count(self, done: Round) -> None:
        """Count a round, and learn what asking for a copy was worth."""
        economy, timed = self.economy, self._ledger.timed
        gain = self._ledger.close(done, self._spent(done), bool(self._asked), self.resting)
        economy.vain = max(economy.vain - EXPLORE * len(done.tokens) / economy.company, 0.0)
        if self._asked:
            economy.net = NET * economy.net + (1 - NET) * gain
            if not timed:
                economy.settle(self._paid, gain)
        if not self.resting:
            self._seen = (self._context or 0) + len(done.tokens)

    def _spent(self, done: Round) -> float:
        """Return the predicted time of a round, in plain tokens."""
        economy, spent = self.economy, self._missed
        if self._asked:
            spent += economy.asking(1)
        if done.drafted:
            spent += economy.reading(1 + len(done.drafted))
        if done.handed:
            spent += economy.writing(len(done.handed), self.watches and not self.resting)
        return spent
