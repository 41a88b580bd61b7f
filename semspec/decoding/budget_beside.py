"""The budget for lookups ("copies") beside a draft model: each round, the source that should save the most time drafts.

Each source has a pace of its own, with its own lengths, costs and chances. They share the problem's account, the price
of a plain token, and the current worth of a gained token.

A lookup costs next to nothing, so it comes first. ``model`` then compares what was found with what the model should
bring, before the model draws anything. So the choice depends only on the text and earlier rounds, and a lossless
rule keeps the target's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from semspec.decoding.budget import SLEEPS, Adaptive
from semspec.decoding.budget_prospects import Proposal
from semspec.decoding.costs import ASK
from semspec.decoding.economy import Economy
from semspec.types import Draft, Room, Round, Turns

SUFFIX = " copies"  # added to a drafter's name for the costs and chances of its copies


@dataclass(slots=True)
class Lookups(Economy):
    """The economy of copies beside a model: their own costs, chances and bank, but the model's time."""

    account: Economy | None = None

    def beside(self, account: Economy) -> Lookups:
        """Set the economy of the problem's model, and return this one."""
        self.account = account
        return self

    @property
    def token(self) -> float:
        assert self.account is not None
        return self.account.token

    @property
    def rate(self) -> float:
        assert self.account is not None
        return self.account.rate


@dataclass(slots=True, kw_only=True, eq=False)
class Copies(Adaptive):
    """The pace of lookups beside a model."""

    copies: bool = True
    cuts: bool = True

    def _rest(self, loss: float, missed: float = 0.0, least: int = 1) -> None:
        """Let the target write on; the model's own pace decides whether it reads along."""
        self._alone = tokens = max(self.economy.pause(max(loss, 0.0) + missed), least)
        self._ledger.asleep |= tokens >= SLEEPS and not self.watches


@dataclass(slots=True, kw_only=True, eq=False)
class Beside(Adaptive):
    """The pace of a draft model in whose place copies may draft."""

    copying: Copies
    turns: Turns | None = field(default=None, init=False)
    _draws: bool = field(default=False, init=False)  # the model drafts in this round
    _loss: float = field(default=0.0, init=False)  # expected loss of its draft
    _waits: int = field(default=0, init=False)  # tokens until its draft can be afforded again ...
    _rests: bool = field(default=False, init=False)  # ... during which it does not read along

    def __post_init__(self) -> None:
        Adaptive.__post_init__(self)
        self.turns, self.copying._ledger = self, self._ledger

    # ---- before a draft --------------------------------------------------------------------------

    def behind(self, context: int) -> None:
        Adaptive.behind(self, context)
        self.copying.behind(context)

    def _settle(self) -> None:
        Adaptive._settle(self)
        self.copying._settle()

    def units(self) -> int:
        """Return how much to copy at most; ``model`` decides how much the model drafts instead."""
        copying = self.copying
        copying._begin()
        self._ledger.turn(self.economy)
        self._draws, self._loss = False, 0.0
        if copying.watches != (along := self.watches and not self._rests):
            copying.watches = along  # nobody reads along while the model rests
            copying._prices.clear()
        Adaptive.units(self)
        self.resting |= self._rests
        if self._asked:
            copying._asked = copying.longest
        return copying._asked

    def _wake(self) -> None:
        """Do nothing yet: only after the lookup is it known whether the model drafts (``model``)."""

    def _decide_alone(self) -> None:
        """Let the model draft unless a copy is worth more; if it does not pay, look only for copies, or for nothing."""
        ledger, copying = self._ledger, self.copying
        if not self._waits:
            ledger.asleep |= self._unread >= SLEEPS and not self.watches
            self._asked, self._loss, self.chain = self._best()
            self.economy.begin()
            waking = self._missing() + ledger.waking
            self.economy.wanted = max(self._loss, 0.0) + waking
            wait = self._wait(self._loss)
            can = self.economy.may_lose(self._loss, waking) or self._due(self._loss)
            saves = self._saves(self._loss)
            if can and not wait and not saves:
                return
            if saves:
                self._sit_out(self._loss)
            else:
                self._rest(self._loss, waking, max(wait, 1))
            self._waits, self._rests = self._alone, self.resting
        self._asked, self._alone = 0, 1
        ledger.turn(copying.economy)
        copying.economy.wanted = max(-copying.net, 0.0)
        if ledger.affords(-copying.net, wakes=False):
            copying._asked = copying.longest
        else:
            ledger.turn(self.economy)
            copying._rest(-copying.net)
            self._alone = min(copying._alone, self._waits)

    # ---- after the lookup ------------------------------------------------------------------------

    def model(self, found: Draft, room: Room) -> Room | None:
        self._settle()
        copying, proposal = self.copying, None
        if found.tokens and self.economy.token:
            proposal = copying._proposed(found)
            proposal.sent = frozenset()
        if not self._asked or self._copies(found, proposal):
            if self._asked:
                self._asked, self.chain = 0, False
                self._ledger.turn(copying.economy)
            return None
        if self.economy.token and not self._ledger.crowded:
            missed = self._missing()
            self._ledger.affords(self._loss, wakes=True, missed=missed, anyway=True)
            self._missed = 0.0 if self._ledger.timed else missed
        else:
            self._ledger.wake()
        self._draws, copying._proposal = True, proposal
        return replace(room, units=self._asked, chain=self.chain)

    def _copies(self, found: Draft, proposal: Proposal | None) -> bool:
        """Return whether the copy saves more time than the model's draft."""
        if proposal is None:
            return bool(found.tokens)
        # the one pass over the prompt has to serve the model
        if self.watches and not self._ledger.rounds:
            return False
        copying, rate = self.copying, self.economy.rate
        nodes, hope, price, _ = copying._weighed(proposal.parents, proposal.signals)
        saved = rate * copying._mood * hope - price
        drawn = rate * self._mood * self._hope - self._cost(self._asked, self.chain)
        return bool(nodes) and saved > drawn

    # ---- after a draft ---------------------------------------------------------------------------

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        self._settle()
        if self._draws:
            Adaptive.asked(self, self._asked, seconds, passes)
            return
        copying = self.copying
        predicted = copying.economy.asking(copying._asked)
        self._ledger.asked(ASK, copying._asked, seconds, predicted)

    def cut(self, draft: Draft) -> None:
        self._settle()
        if self._draws:
            Adaptive.cut(self, draft)
            return
        copying = self.copying
        copying.cut(draft)
        if copying._asked:
            self.resting = self._rests
            self._alone = min(copying._alone, self._waits or copying._alone)

    # ---- after a round ---------------------------------------------------------------------------

    def observe(self, done: Round) -> None:
        self._settle()
        copying = self.copying
        source = copying if copying._asked and not self._draws else self
        spent = source._spent(done)
        gain = self._ledger.close(done, spent, bool(source._asked), self.resting)
        self._won = False
        if self._draws:
            self._note(done, gain)
        self._miss(done, self._draws)
        tokens = len(done.tokens)
        self._waits = max(self._waits - tokens, 0)
        self._rests &= self._waits > 0
        self._unread = 0 if self._draws else self._unread + tokens
        copying.economy.went(0.0, tokens)  # the copies' bank grows with the text too
        source._look_back(done)
        if self._draws and copying._proposal is not None and self.exact:
            copying._learn(copying._proposal, done.tokens)
