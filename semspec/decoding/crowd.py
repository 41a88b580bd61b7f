"""Drafts for all problems under way, or for none of them: whichever brings more tokens a second, by the clock.

On a server many problems share the passes. A draft among others who write makes all of them wait, which no price of a single question
shows; and what it gains there says nothing about drafts in every place. So all draft together, for a *trial* of a few rounds, and the tokens
that come of it are held against those that its time brings where all write. Drafts that gain go on, and are counted again every few rounds. Else
all write, until what the trial has lost is less than ``EXPLORE`` of the time since.

What a plain token takes where all write grows with the texts. So all write for a moment, and another trial follows, where drafts seem to lose
after they have gained, and now and then while they gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from semspec.decoding.experience import DEBT, EXPLORE, Rows

LOOK = 64  # tokens that each problem writes in a row while all write, since drafts lose
GATHER = 32  # the same, before all draft
SHORT = 16  # the same, for a moment, where all have drafted, and where drafts have not been tried
CHECK = 1024  # tokens of each problem after which that comes in any case
SETTLED = 16  # tokens of each problem under a load before drafts are tried under it
ROUNDS = 2  # of each problem, in a trial
AGAIN = 4  # the same, before drafts that go on are counted again
LEAST = 64  # rounds of all problems together, in either case: what drafts come to varies from one to the next
SOON = 16  # the same, of a trial that is clear ...
CLEARLY = 0.3  # ... by this share of its time
LASTS = 256  # the same, where they have lost under another load: most loads are over before
HOLD = 32  # plain tokens for which another number of problems has to last before it counts
SLACK = 0.02  # of their time, by which drafts that go on may have lost before that is no accident
AHEAD = 8.0  # plain tokens of each problem that they may lose of what they have gained: answers that began together have their best places together
FADES = 0.995  # of what earlier rows have taken, at each new one
ROUNDING = 1e-6  # of a token
State = Literal["writing", "gathering", "trial", "drafting"]


@dataclass(slots=True)
class Crowd:
    """What has become of drafts with so many problems under way."""

    size: int
    state: State = "writing"
    gained: bool | None = None  # what the last trial has found, here or under the load before
    owed: float = 0.0  # plain tokens that trials have lost and that were not made up for since
    written: float = 0.0  # tokens of all problems while all wrote
    rows: Rows = field(default_factory=Rows, init=False)  # that were written so
    _due: float = field(default=0.0, init=False)  # when those who gather have written their rows
    _began: float = field(default=0.0, init=False)  # rounds that began before then are mixed ones
    _settling: int = field(default=0, init=False)  # rounds until all draft
    _gain: float = field(default=0.0, init=False)  # plain tokens, since it was counted last
    # of what drafts have gained, what may be lost again
    _ahead: float = field(default=0.0, init=False)
    # what drafts had lost when they were doubted: a trial has to make up for that
    _doubt: float = field(default=0.0, init=False)
    # what a whole trial has lost, waking drafters included
    _lost: float = field(default=0.0, init=False)
    _joined: int = field(default=0, init=False)  # rows that began while they gather
    _drafted: int = field(default=0, init=False)  # tokens of all problems since all wrote
    _spent: float = field(default=0.0, init=False)  # plain tokens of time in which it was gained
    _rounds: int = field(default=0, init=False)

    def expect(self, other: Crowd) -> None:
        """Take over what was found under another load, where nothing is known of this one: drafts gain least where many share the passes."""
        if self.gained is None:
            more = self.size / other.size
            self.gained = other.gained
            if other.gained is False:
                self.owed = other.owed * more
                # few may gain where many lose, but not every load that is there for a moment is to be tried
                if more < 1:
                    self.owed = min(self.owed, EXPLORE * LASTS * self.size)
            self.state = "drafting" if other.gained else "writing"

    def token(self, known: float) -> float:
        """Return the seconds of a plain token where all write; ``known``: as single questions have taken."""
        return self.rows.token or known

    def row(self, now: float, known: float) -> int:
        """Return how many tokens a problem is to write alone from now on; 0: it is to draft."""
        if self.state == "writing":
            untried = self.gained is None
            if self.owed > 0 or self.written < SETTLED * self.size:
                return SHORT if untried else LOOK
            self._gather(now + (SHORT if untried else GATHER) * self.token(known))
        if self.state == "gathering":
            self._joined += 1
            if self._joined == max(1, self.size // 2):
                # rows from here on are hardly kept waiting by drafts
                self._began = min(self._began, now)
            left = (self._due - now) / self.token(known)
            if left >= 1:
                return min(math.ceil(left - ROUNDING), LOOK)
            self.state, self._lost, self._drafted = "trial", 0.0, 0
            self._count(now, self.size)
        return 0

    def _gather(self, due: float) -> None:
        """Let all write up to the same moment, to draft from there on."""
        if self.state == "drafting":
            self._began = math.inf
            # what plain tokens took long ago counts less than what they are about to take
            self.rows.fade(min(1.0, SHORT / 4 * self.size / max(self.rows.tokens, 1.0)))
        self.state, self._due, self._joined = "gathering", due, 0

    def _count(self, now: float, settling: int = 0) -> None:
        """Begin to count rounds, once all that are under way began after now."""
        self._began, self._settling = now, settling
        self._gain, self._spent, self._rounds = 0.0, 0.0, 0

    def enter(self, now: float) -> None:
        """Take note that so many problems are under way from now on."""
        self._began = now

    def leave(self) -> None:
        """Take note that another number of problems is under way from now on: a trial is over, and has found nothing."""
        if self.state not in ("gathering", "trial"):
            return
        if self.gained:  # whether drafts still gain is found out when there are as many again
            self._gather(-math.inf)
        else:
            self._end(self._lost if self.state == "trial" else 0.0)

    def closed(self, tokens: int, began: float, now: float, known: float, reads: bool) -> None:
        """Count a round of one of the problems. ``reads``: it has read its prompt as well."""
        if self.state in ("writing", "gathering"):
            self.written += tokens
            self.owed = max(self.owed - EXPLORE * tokens, 0.0)
            if not reads and began >= self._began:
                self.rows.fade(FADES)
                self.rows.add(now - began, tokens)
            return
        if reads or began < self._began:
            return
        self._drafted += tokens
        spent = (now - began) / self.token(known)
        gain = tokens - spent
        self._lost -= gain
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
        # behind a doubt a good place says little
        clear = -self._gain if self._doubt else abs(self._gain)
        if trial and clear > CLEARLY * self._spent:
            enough = max(self.size, SOON)
        if self._rounds < enough:
            return
        if trial:
            self.gained = self._gain >= self._doubt
            self._doubt = 0.0
        if not self.gained:
            self._end(self._lost)
            self._began = now
            return
        self.state = "drafting"
        self._ahead += self._gain + SLACK * self._spent
        self._doubt = max(-self._ahead, 0.0)
        self._ahead = min(max(self._ahead, 0.0), AHEAD * self.size)
        self._count(now)
        if self._doubt or self._drafted > CHECK * self.size:
            self._gather(now + SHORT * self.token(known))

    def _end(self, lost: float) -> None:
        """Let all write, until so much is made up for."""
        self.state = "writing"
        self.owed = min(max(lost, 0.0), DEBT * self.size)
