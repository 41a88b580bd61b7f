"""The account of one problem: what its rounds have taken, held against the plain tokens in whose place they stand.

Where the clock is known, and no other problem shares the passes, what a round has lost or gained is what its seconds
say; elsewhere it is what was predicted. On a server, where problems come and go, all of them draft or none does (``crowd``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semspec.decoding.economy import Economy
from semspec.decoding.experience import ENOUGH, FEW, OUTLIER
from semspec.types import Round

STALE = 96  # tokens after which the price of a plain one is measured again ...
CLOSE = 0.8  # ... where drafts leave more than this share of the time, or it was measured but a few times
CLEAR = 0.6  # of the time, below which drafts pay whatever a plain token takes exactly
WATCHED = 4  # times as many for a drafter that reads along, which has to catch up afterwards
SELDOM = 16  # times as many tokens after which it is, where drafts pay


@dataclass(slots=True)
class Ledger:
    """Keeps the account of one problem, round by round."""

    economy: Economy
    watches: bool = False  # the drafter reads along while the target writes
    copies: bool = False  # it looks things up
    # whose draft a round is for: of several sources each pays for its own drafts
    source: Economy = field(init=False)
    rounds: int = field(default=0, init=False)
    # the drafter has not read what was written since: the prompt, or all of a long rest
    asleep: bool = field(default=True, init=False)
    # in this round its drafter worked for the first time in the run
    _cold: bool = field(default=False, init=False)
    _woke: bool = field(default=False, init=False)  # in this round
    # beforehand, for this round, and for the next one where that is drafted ahead
    _paid: float = field(default=0.0, init=False)
    _paid_under: int = field(default=0, init=False)  # the number of problems under way then
    _excess: float = field(default=0.0, init=False)  # of this round, for waking its drafter
    _drafting: float = field(default=0.0, init=False)  # seconds of this round that its draft took
    _since: float | None = field(default=None, init=False)  # when this round began
    _wakings: int = field(default=0, init=False)  # of all problems, when it began

    def __post_init__(self) -> None:
        self.source = self.economy

    def turn(self, source: Economy) -> None:
        """Let the round be for another source's draft; what was paid for the first one's is given back."""
        self.over()
        self.source = source

    def begin(self) -> None:
        """Begin a round, unless it has begun."""
        self._excess = self._drafting = 0.0
        self._woke = False
        if self.economy.costs.load == 1:
            self.economy.part()
        if self._since is None:
            self._since = self.economy.costs.clock
        self._wakings = self.economy.costs.wakings

    def over(self) -> None:
        """Give back what was paid for a round that was left before its end: its text or its request has ended."""
        paid, self._paid = self._paid, 0.0
        if paid:
            self.source.settle(paid, 0.0, self._paid_under)

    @property
    def timed(self) -> bool:
        """True where the clock says what rounds take."""
        economy = self.economy
        return economy.company == 1 and economy.costs.clock is not None and economy.token > 0

    @property
    def crowded(self) -> bool:
        """True where others come and go beside it, and the clock says what drafts bring to all of them."""
        costs = self.economy.costs
        return costs.load > 1 and costs.clock is not None and self.economy.token > 0

    def row(self) -> int:
        """Return how many tokens the target is to write alone because nobody knows what they take at present."""
        if not self.timed:
            return 0
        experience = self.economy.experience
        if not experience.token:
            # behind the prompt, whose pass is no token's; a drafter that reads along has that pass for its own first draft
            if self.copies and self.watches:
                # to miss a row is dear: it comes where the drafter rests, or late
                return ENOUGH if experience.old > STALE and self.rounds else 0
            return ENOUGH if self.rounds else int(not self.watches)
        rate = self.economy.rate
        doubted = rate > CLOSE or (experience.rows < FEW and rate > CLEAR)
        often = WATCHED if self.watches else 1
        stale = experience.old > STALE * (often if doubted else SELDOM)
        return ENOUGH if stale and self.rounds else 0

    def affords(self, loss: float, wakes: bool, missed: float = 0.0, anyway: bool = False) -> bool:
        """Tell whether a draft may be made that is expected to lose so much (``anyway``: it may), and pay for it beforehand.

        ``missed``: what reading costs that has to come first, beside what wakes the drafter.
        """
        self.source.begin()
        waking = missed + (self.waking if wakes else 0.0)
        if not self.source.affords(loss, waking, anyway):
            return False
        if loss > 0:
            self._paid += loss + waking
            self._paid_under = self.economy.company
        self.wake(wakes)
        return True

    def wake(self, wakes: bool = True) -> None:
        """Take note that this round's draft is going to be made, by a drafter that reads what it has not seen (``wakes``)."""
        self._woke, self.asleep = wakes and self.asleep, self.asleep and not wakes

    def together(self) -> int:
        """Return how many tokens are to be written alone, as the others under way do; 0: all draft.

        A drafter that reads along and has not been tried has the pass over the prompt for its first draft: in the trial that
        follows, the prompt would have to be read again.
        """
        economy, now = self.economy, self.economy.costs.clock
        assert now is not None
        row = economy.crowd(now).row(now, economy.token)
        return row if self.rounds or self.tried or not self.watches else 0

    @property
    def tried(self) -> bool:
        """True if it was found out what drafts bring to so many problems under way."""
        known = self.economy.crowds.get(self.economy.company)
        return known is not None and known.gained is not None

    @property
    def waking(self) -> float:
        """Plain tokens that the drafter needs to read what it has not seen."""
        return self.economy.experience.waking if self.asleep else 0.0

    @property
    def _waited(self) -> bool:
        """True where this round's draft had to wait until a drafter had read at length: its own, or another problem's."""
        return self._woke or (self.crowded and self.economy.costs.wakings != self._wakings)

    def asked(
        self, kind: str, units: float, seconds: float, predicted: float, reading: float = 0.0
    ) -> None:
        """Take note of what a draft has cost, in seconds, where so many plain tokens were predicted.

        ``reading``: of these seconds, what was spent on what the drafter had missed.
        """
        economy, self._drafting = self.source, seconds
        seconds -= reading
        if economy.costs.fixed:
            return
        known = economy.costs.curve(economy.who, kind, economy.company)
        if known is None and not economy.warm:
            economy.warm = self._cold = True  # its first work says nothing about what is to come
        elif self._waited and (known or economy.model) and economy.token:
            self._excess = max(seconds / economy.token - predicted, 0.0)
            if self._woke:
                economy.experience.woke(self._excess)
        else:
            context = economy.context or 0
            economy.costs.add(economy.who, kind, economy.company, units, seconds, context)

    def close(self, done: Round, predicted: float, asked: bool, resting: bool) -> None:
        """Count a round of which so many plain tokens of time were predicted.

        ``asked``: for a draft; ``resting``: the drafter did not read along.
        """
        self.rounds += 1
        economy, since, now = self.economy, self._since, self.economy.costs.clock
        tokens, cold, paid = len(done.tokens), self._cold, self._paid
        self._paid = 0.0
        self._since, self._cold = None, False
        if since is None or now is None:
            economy.went(predicted, tokens)
            return
        if not self.timed:
            economy.went(predicted, tokens)
            if self.crowded:
                if paid:  # for when it was alone
                    self.source.settle(paid, 0.0, self._paid_under)
                crowd = economy.crowd(now)
                # else another number is under way for the moment: a token has another price
                if crowd.size == economy.company:
                    crowd.closed(tokens, since, now, economy.token, self.rounds == 1)
            return
        experience, first = economy.experience, self.rounds == 1
        unseen = not done.drafted and (resting or not self.watches)
        row = unseen and tokens >= ENOUGH and not first
        if row:
            # an engine that stamps no answers has only the clock
            seconds = done.seconds.get("write", 0.0) or now - since - self._drafting
            experience.wrote(seconds - economy.beginning, tokens, economy.context or 0)
        expected = predicted + self._excess
        if first or cold:  # the prompt is read in it, whoever writes
            real = expected
        elif row:
            real = self._drafting / economy.token + tokens + economy.beginning / economy.token
        else:
            real = min((now - since) / economy.token, OUTLIER * expected)
            mine = self.source.experience
            mine.drafted(max(real - self._excess, 0.0), predicted / mine.factor)
        economy.went(real, tokens)
        if asked or not unseen:
            gain = tokens - real
            self.source.settle(paid, min(gain, 0.0) if first else gain)
