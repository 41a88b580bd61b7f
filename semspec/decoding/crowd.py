"""Draft for all running problems or for none, whichever brings more tokens per second by the clock.

On a server many problems share the passes. One draft among problems that write makes all of them wait, which no price of a
single query shows, and its gain says nothing about drafting everywhere. So all problems draft together in a *trial* of a
few rounds, and its tokens are compared with what plain writing brings in the same time. If drafts gain, they go on and are
counted again every few rounds. Otherwise all write until the trial's loss is below ``EXPLORE`` of the time since.

A plain token takes longer as the texts grow. So all write for a moment and try again when drafts seem to lose after they
have gained, and now and then while they gain. And a failed trial tells what a token takes with drafts: once a plain token
takes longer than that, they are tried again at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from semspec.decoding.costs import nearest
from semspec.decoding.experience import DEBT, EXPLORE
from semspec.decoding.plain_price import LEAST as ROWS
from semspec.decoding.plain_price import PlainPrice

LOOK = 64  # tokens per problem and row while all write because drafts lose
GATHER = 32  # the same before all draft
SHORT = 16  # the same where all have drafted so far, or where drafts have not been tried
BRIEF = 8  # the same where drafts are tried again because a plain token has become dear
MEANWHILE = 4  # the same beside the last drafts of the others
CHECK = 1024  # tokens per problem after which drafts that gain are tried anew
SETTLED = 16  # tokens per problem under a load before drafts are tried under it
ROUNDS = 4  # rounds per problem in a trial
AGAIN = 4  # rounds per problem before drafts that go on are counted again
LEAST = 64  # least rounds of all problems together in either case: single drafts vary
SOON = 16  # the same for a trial that is clear ...
CLEARLY = 0.3  # ... by this share of its time, after two rounds per problem ...
HOPELESS = 0.45  # ... or by this one after a single round: problems that began together may all be at a hard place
LASTS = 256  # tokens per problem before a trial where drafts lost under a higher load: most loads end sooner
HOLD = 32  # plain tokens that another number of problems has to last before it counts
SLACK = 0.02  # share of their time that drafts may lose by chance
# most plain tokens of gain per problem that may be lost again: answers that began together have their easy passages
# at the same time
AHEAD = 8.0
FAR = 2.0  # times a plain token's time: drafts whose tokens take longer hardly pay soon
DEARER = 1.15  # times what a token took with drafts that a plain one has to take before they are tried again at once
ROUNDING = 1e-6  # of a token
State = Literal["writing", "gathering", "trial", "drafting"]


@dataclass(slots=True)
class Crowds:
    """The records of drafts by number of running problems, and which of them counts now."""

    known: dict[int, Crowd] = field(default_factory=dict)
    _size: int = field(default=0, init=False)  # of the crowd that is running
    _since: float | None = field(default=None, init=False)  # when that number changed

    def running(self, size: int, now: float, token: float) -> Crowd:
        """Return the record of ``size`` problems, or of the last number until the new one has lasted a while.

        ``token``: seconds of a plain token.
        """
        under_way = self.known.get(self._size)
        if under_way is not None:
            if size == self._size:
                self._since = None
                return under_way
            self._since = now if self._since is None else self._since
            if now - self._since < HOLD * token:
                return under_way
        self.part()
        found = self.known.setdefault(size, Crowd(size))
        others = [known for known in self.known if known != size]
        tried = [known for known in others if self.known[known].gained is not None]
        if others:
            found.expect(self.known[nearest(tried or others, size)])
        found.enter(now)
        self._size, self._since = size, None
        return found

    def part(self) -> None:
        """Note that the problems that ran together no longer do."""
        if self._size in self.known:
            self.known[self._size].leave()
        self._size, self._since = 0, None


@dataclass(slots=True)
class Crowd:
    """The record of drafts while ``size`` problems run."""

    size: int
    state: State = "writing"
    gained: bool | None = None  # result of the last trial, here or under the load before
    owed: float = 0.0  # plain tokens lost in trials and not yet made up for
    written: float = 0.0  # tokens of all problems while all wrote
    own: bool = False  # ``gained`` is the result of a trial under this load
    plain: PlainPrice = field(init=False)
    # seconds of a token in the last trial, if it failed; 0: none did
    price: float = field(default=0.0, init=False)
    _due: float = field(default=0.0, init=False)  # when the gathering problems end their rows
    _began: float = field(default=0.0, init=False)  # rounds that began earlier are mixed
    _settling: int = field(default=0, init=False)  # rounds until all draft
    _gain: float = field(default=0.0, init=False)  # plain tokens since the last count
    # part of the drafts' gain that may be lost again
    _ahead: float = field(default=0.0, init=False)
    # seconds (at a drift of 1) and tokens of the drafts that caused a doubt: the next trial has to make up for their loss
    _doubt: tuple[float, float] | None = field(default=None, init=False)
    # when it arose: all write for a moment from the next turn on
    _doubted: float | None = field(default=None, init=False)
    # gain since drafts were tried again, and whether that was before the last trial's loss was made up for
    _net: float = field(default=0.0, init=False)
    _early: bool = field(default=False, init=False)
    # the last such early try lost in the end, even if it began well
    _vain: bool = field(default=False, init=False)
    _ended: float = field(default=0.0, init=False)  # ``written`` when drafts were given up
    # loss of a whole trial, including waking the drafters
    _lost: float = field(default=0.0, init=False)
    _joined: int = field(default=0, init=False)  # rows begun while gathering
    _drafted: int = field(default=0, init=False)  # tokens of all problems since all wrote
    _spent: float = field(default=0.0, init=False)  # plain tokens of time behind ``_gain``
    _rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.plain = PlainPrice(self.size)

    def expect(self, other: Crowd) -> None:
        """Take over another load's result if this load has none; drafts gain least where many problems share the passes."""
        self.plain.elsewhere = other.plain.above
        if self.own or other.gained is None or other.gained is self.gained:
            return
        more = self.size / other.size
        self.gained, self.owed = other.gained, other.owed * more
        # few problems may gain where many lose, but a short-lived load is not worth a trial
        if more < 1:
            self.owed = min(self.owed, EXPLORE * LASTS * self.size)
        self.state = "drafting" if other.gained else "writing"

    @property
    def untried(self) -> bool:
        """True if drafts were not tried, or a trial that ended without a result has been made up for."""
        return self.gained is None and not self.owed

    def row(self, now: float, known: float, drift: float = 1.0) -> int:
        """Return how many tokens a problem has to write plainly now; 0: it drafts.

        ``known``: seconds of a plain token under this load, by the price of single queries. ``drift``: as in ``PlainPrice``.
        """
        self.plain.now(known, drift)
        if self.state == "writing":
            if now < self._began:  # drafts were given up in this turn, and some still make one
                return min(MEANWHILE, self._pause)
            if (self.owed > 0 and not self._pays_now) or self.written < SETTLED * self.size:
                return self._pause
            self._early, self._net = self.owed > 0, 0.0
            rows = BRIEF if self._early else SHORT if self.untried else GATHER
            self._gather(now + rows * self.plain.token)
        elif self._doubted is not None and now > self._doubted:
            # not at once: in the turn in which the doubt arose, others draft once more and would make the rows wait
            self._doubted = None
            self._gather(now + SHORT * self.plain.token)
        if self.state == "gathering":
            self._joined += 1
            if self._joined == max(1, self.size // 2):
                # later rows hardly wait for drafts any more
                self._began = min(self._began, now)
            left = (self._due - now) / self.plain.token
            if left < 1 and not self.plain.measured:  # a guess is no price to compare with
                left = float(SHORT)
            if left >= 1:
                return min(math.ceil(left - ROUNDING), LOOK)
            # after a failed trial, a slow moment may have made plain tokens look dear
            if self.owed > 0 and self.plain.token < self.price:
                self.state, self._began = "writing", min(self._began, now)
                self.plain.forget_latest()
                self._ended = -math.inf
                return self._pause
            self.state, self._lost, self._drafted = "trial", 0.0, 0
            self._count(now, self.size)
        return 0

    @property
    def _pause(self) -> int:
        """Tokens per problem and row while all write."""
        if self.untried:
            return SHORT
        if self._far or self._vain:
            return LOOK
        # answers that began together grow together, and a plain token may soon be much dearer than in the trial
        return SHORT if self.written < self._ended + LOOK * self.size else GATHER

    @property
    def _pays_now(self) -> bool:
        """True if a plain token takes longer now than a token in the trial that failed."""
        latest = self.plain.latest
        # a row of each problem, and a few rows where there are few: older ones fade
        enough = latest.tokens >= SHORT * max(self.size, ROWS) / 2
        return enough and not self._vain and latest.token > DEARER * self.price > 0

    @property
    def _far(self) -> bool:
        """True if a plain token would have to take much longer before drafts are tried again at once."""
        return not 0 < self.price < FAR * (self.plain.latest.token or self.plain.token)

    def _gather(self, due: float) -> None:
        """Let all write up to the same moment, and draft from then on."""
        if self.state == "drafting" or self.owed > 0:
            self._began = math.inf
            # old prices of plain tokens count less than those about to be measured, and hardly at all after a failed trial
            self.plain.weigh(1 if self.owed > 0 else SHORT / 4)
        self.state, self._due, self._joined = "gathering", due, 0

    def _count(self, now: float, settling: int = 0) -> None:
        """Start a new count, of rounds that begin after now; the first ``settling`` of them are not counted."""
        self._began, self._settling = now, settling
        self._gain, self._spent, self._rounds = 0.0, 0.0, 0

    def enter(self, now: float) -> None:
        """Note that this load begins now."""
        self._began = now

    def leave(self) -> None:
        """Note that this load ends now; a trial in progress ends without a result."""
        if self.state not in ("gathering", "trial"):
            return
        if self.gained and not self.plain.measured:  # what seemed to be a loss was a guess
            self.state, self._doubt, self._doubted = "drafting", None, None
        elif self.gained:  # try again when this load comes back
            self._gather(-math.inf)
        else:
            self._end(self._lost if self.state == "trial" else 0.0)

    def closed(
        self,
        tokens: int,
        began: float,
        now: float,
        known: float,
        reads: bool,
        writing: float = 0.0,
        besides: float = 0.0,
        share: float = 1.0,
        drift: float = 1.0,
        least: float = 0.0,
    ) -> None:
        """Count a round of one problem.

        ``known``, ``drift``: as in ``row``. ``reads``: it also read its prompt. ``writing``: seconds of the target's passes (0: all of
        them); ``besides``: those that were not the target's. ``share``: what a plain token costs under the load of this round, over one
        under ``size``: towards the end of a group fewer and fewer problems are left. ``least``: plain tokens that those passes are worth at
        least: what was written without a draft, or one, however dear a plain token seems now.
        """
        self.plain.now(known, drift)
        if self.state in ("writing", "gathering"):
            self.written += tokens
            self.owed = max(self.owed - EXPLORE * tokens, 0.0)
            if not reads and began >= self._began and share == 1.0:
                # while drafts rest, rows are ``LOOK`` tokens long, which share what lies between two rows
                seconds = (writing or now - began) + besides * min(tokens / LOOK, 1.0)
                self.plain.wrote(tokens, seconds, (began, now))
            return
        if reads or began < self._began:
            return
        self._drafted += tokens
        token, seconds = share * self.plain.token, now - began
        spent = max(seconds, least * token + seconds - (writing or seconds)) / token
        gain = tokens - spent
        self._lost -= gain
        self._net += gain
        if self._settling:
            self._settling -= 1
            if not self._settling:
                self._count(now)
            return
        self._gain += gain
        self._spent += spent
        self._rounds += 1
        trial = self.state == "trial"
        enough = max((ROUNDS if trial else AGAIN) * self.size, LEAST)
        # one easy passage proves little after a doubt, and nothing new while drafts gain
        clear = abs(self._gain) if trial and not self._doubt else -self._gain
        if clear > CLEARLY * self._spent:
            each = 1 if clear > HOPELESS * self._spent else 2
            enough = min(enough, max(each * self.size, SOON))
        if self._rounds < enough:
            return
        if trial:
            seconds, kept = self._doubt or (0.0, 0.0)
            self.gained = self._gain >= seconds / self.plain.steady - kept
            self.own, self._doubt = True, None
            times = max(self._spent / (self._spent + self._gain), 1.0)  # as long as a plain token
            self.price = 0.0 if self.gained else times * self.plain.token
            self.plain.forget_latest()
        if not self.gained:
            self._vain = self._early and self._net < 0
            self._end(max(self._lost, -self._net))
            self._began = math.nextafter(now, math.inf)  # in this turn, others draft once more
            return
        self.state, self.owed = "drafting", 0.0
        self._ahead += self._gain + SLACK * self._spent
        if self._ahead < 0:
            self._doubt = self._spent * self.plain.steady, self._spent + self._ahead
        if self._doubt or self._drafted > CHECK * self.size:
            self._doubted = now
        self._ahead = min(max(self._ahead, 0.0), AHEAD * self.size)
        self._count(now)

    def _end(self, lost: float) -> None:
        """Let all write until this loss is made up for."""
        self.state, self._ended = "writing", self.written
        self.owed = min(self.owed + max(lost, 0.0), DEBT * self.size)
