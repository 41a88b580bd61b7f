"""The account of one problem: the cost of its rounds compared with the plain tokens they replace.

With a clock, and if no other problem shares the passes, measured seconds decide what a round gained or lost; otherwise
predictions do. On a server, where problems come and go, all of them draft or none does (``crowd``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semspec.decoding.economy import TRIES, Economy
from semspec.decoding.experience import ENOUGH, FEW, OUTLIER
from semspec.types import Round

STALE = 96  # tokens after which the price of a plain token is measured again ...
CLOSE = 0.8  # ... where a token takes more than this share of a plain one's time, or few rows were measured
CLEAR = 0.6  # below this share drafts pay whatever the exact price
WATCHED = 4  # times STALE for a drafter that reads along and has to catch up afterwards
SELDOM = 16  # times STALE where drafts clearly pay
ROUGH = 1.5  # a run's first drafts count as at most this many times their expected time: one interruption must not end them


@dataclass(slots=True)
class Ledger:
    """Keeps the account of one problem, round by round."""

    economy: Economy
    watches: bool = False  # the drafter reads along while the target writes
    copies: bool = False  # the drafter looks its drafts up
    # the source whose draft the round is for: each source pays for its own drafts
    source: Economy = field(init=False)
    rounds: int = field(default=0, init=False)
    # the drafter has not read the latest text: the prompt, or all of a long rest
    asleep: bool = field(default=True, init=False)
    # the drafter worked in this round for the first time in the run
    _cold: bool = field(default=False, init=False)
    _woke: bool = field(default=False, init=False)  # the drafter woke in this round
    # paid beforehand for this round, and for the next one if it is drafted ahead
    _paid: float = field(default=0.0, init=False)
    _paid_under: int = field(default=0, init=False)  # the load when it was paid
    excess: float = field(default=0.0, init=False)  # cost of waking the drafter in this round
    _drafting: float = field(default=0.0, init=False)  # seconds of this round spent on its draft
    _since: float | None = field(default=None, init=False)  # when this round began
    _wakings: int = field(default=0, init=False)  # ``Costs.wakings`` when it began

    def __post_init__(self) -> None:
        self.source = self.economy

    def turn(self, source: Economy) -> None:
        """Switch the round to another source; refund what was paid for the first one's draft."""
        self.over()
        self.source = source

    def begin(self) -> None:
        """Begin a round; keep its start time if it has begun already."""
        self.excess = self._drafting = 0.0
        self._woke = False
        if self.economy.costs.load == 1:
            self.economy.crowds.part()
        if self._since is None:
            self._since = self.economy.costs.clock
        self._wakings = self.economy.costs.wakings

    def over(self) -> None:
        """Refund what was paid for a round that was abandoned: its text or its request has ended."""
        paid, self._paid = self._paid, 0.0
        if paid:
            self.source.settle(paid, 0.0, self._paid_under)

    @property
    def timed(self) -> bool:
        """True if rounds are timed by the clock: one problem at a time, and the price of a token is known."""
        economy = self.economy
        return economy.company == 1 and economy.costs.clock is not None and economy.token > 0

    @property
    def crowded(self) -> bool:
        """True where other problems come and go, and the clock says what drafts bring to all of them."""
        costs = self.economy.costs
        return costs.load > 1 and costs.clock is not None and self.economy.token > 0

    def row(self) -> int:
        """Return how many tokens the target has to write plainly to measure their price; 0: none."""
        if not self.timed:
            return 0
        experience = self.economy.experience
        if not experience.token:
            # the first round's pass reads the prompt, and a drafter that reads along uses it for its first draft
            if self.copies and self.watches:
                # missing a row is expensive: measure where the drafter rests, or late
                return ENOUGH if experience.old > STALE and self.rounds else 0
            return ENOUGH if self.rounds else int(not self.watches)
        rate = self.economy.rate
        doubted = rate > CLOSE or (experience.rows < FEW and rate > CLEAR)
        often = WATCHED if self.watches else 1
        stale = experience.old > STALE * (often if doubted else SELDOM)
        return ENOUGH if stale and self.rounds else 0

    def affords(self, loss: float, wakes: bool, missed: float = 0.0, anyway: bool = False) -> bool:
        """Return whether a draft with this expected loss may be made (``anyway``: always), and pay for it beforehand.

        ``missed``: cost of what the drafter has to read first, besides waking it.
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
        """Note that this round's draft will be made; ``wakes``: the drafter first reads what it has not seen."""
        self._woke, self.asleep = wakes and self.asleep, self.asleep and not wakes

    def together(self) -> int:
        """Return how many tokens to write plainly, as all running problems do; 0: all draft.

        An untried drafter that reads along drafts in the first round, from the pass over the prompt: in a later trial, the
        prompt would have to be read again.
        """
        economy, now = self.economy, self.economy.costs.clock
        assert now is not None
        crowd = economy.crowd(now)
        row = crowd.row(now, economy.known(crowd.size), economy.costs.drift(crowd.size))
        return row if self.rounds or self.tried or not self.watches else 0

    @property
    def tried(self) -> bool:
        """True if drafts were tried under this load."""
        known = self.economy.crowds.known.get(self.economy.company)
        return known is not None and not known.untried

    @property
    def waking(self) -> float:
        """Plain tokens that the drafter needs to read what it has not seen."""
        return self.economy.experience.waking if self.asleep else 0.0

    @property
    def _waited(self) -> bool:
        """True if this round's draft had to wait for a long read of a drafter: its own or another problem's."""
        return self._woke or (self.crowded and self.economy.costs.wakings != self._wakings)

    def asked(
        self, kind: str, units: float, seconds: float, predicted: float, reading: float = 0.0
    ) -> None:
        """Note the seconds of a draft, of which ``predicted`` plain tokens were expected.

        ``reading``: the part of the seconds spent on reading what the drafter had missed.
        """
        economy, self._drafting = self.source, seconds
        seconds -= reading
        if economy.costs.fixed:
            return
        known = economy.costs.curve(economy.who, kind, economy.company)
        if known is None and not economy.warm:
            economy.warm = self._cold = True  # the first draft is no measure of later ones
        elif self._waited and (known or economy.model) and economy.token:
            self.excess = max(seconds / economy.token - predicted, 0.0)
            if self._woke:
                economy.experience.woke(self.excess)
        else:
            context = economy.context or 0
            economy.costs.add(economy.who, kind, economy.company, units, seconds, context)

    def close(self, done: Round, predicted: float, asked: bool, resting: bool) -> float:
        """Count a round, of which ``predicted`` plain tokens of time were expected; return the plain tokens that it gained.

        ``asked``: it asked for a draft; ``resting``: the drafter did not read along.
        """
        self.rounds += 1
        economy, since, now = self.economy, self._since, self.economy.costs.clock
        tokens, cold, paid = len(done.tokens), self._cold, self._paid
        self._paid = 0.0
        self._since, self._cold = None, False
        if since is None or now is None:
            economy.went(predicted, tokens)
            return tokens - predicted
        if not self.timed:
            economy.went(predicted, tokens)
            if self.crowded:
                if paid:  # paid when it was alone
                    self.source.settle(paid, 0.0, self._paid_under)
                crowd = economy.crowd(now)
                known = economy.known(crowd.size)
                share = economy.token / known if crowd.size != economy.company else 1.0
                row = self._row(done, now - since, resting)
                drift = economy.costs.drift(crowd.size)
                least = 1.0 if done.drafted else float(tokens)
                crowd.closed(tokens, since, now, known, self.rounds == 1, *row, share, drift, least)
            return tokens - predicted
        first = self.rounds == 1
        unseen = not done.drafted and (resting or not self.watches)
        if cold:
            self._drafting = 0.0
        expected = predicted + self.excess
        if not done.drafted:
            real = self._alone(done, None if first else now - since, unseen)
            real += self._first_question if first and asked and self.copies else 0.0
        elif first or cold:  # the first round also reads the prompt
            real = expected
        else:
            real = (now - since) / economy.token
            # reading a draft takes at least as long as a token: less is a price from a slower time
            besides = now - since - _passes(done)
            most = OUTLIER if self.source.tries >= TRIES else ROUGH
            real = min(max(real, 1 + besides / economy.token), most * expected)
            mine = self.source.experience
            mine.drafted(max(real - self.excess, 0.0), predicted / mine.factor)
        economy.went(real, tokens)
        gain = tokens - real
        if asked or not unseen:
            self.source.settle(paid, min(gain, 0.0) if first else gain)
        return gain

    def _row(self, done: Round, elapsed: float, resting: bool) -> tuple[float, float]:
        """Return the seconds of the target's passes, written rows as if no drafter read along, and those besides.

        Without stamped answers, all are the target's.
        """
        writing, tokens = _passes(done) or elapsed, len(done.tokens)
        besides = max(elapsed - writing, 0.0)
        if self.watches and not resting and not done.drafted:
            watched = self.economy.writing(tokens, watched=True)
            writing *= min(self.economy.writing(tokens) / watched, 1.0) if watched else 1.0
        return writing, besides

    @property
    def _first_question(self) -> float:
        """Plain tokens that asking a lookup drafter before the first token costs, besides the search.

        The clock does not tell, since that round also reads the prompt. For a drafter that reads along, the target reads the
        prompt in a pass of its own and then starts the row with one more.
        """
        return self.economy.starting + (self.economy.writing(1) if self.watches else 0.0)

    def _alone(self, done: Round, elapsed: float | None, unseen: bool) -> float:
        """Count a round without a draft; return its plain tokens of time.

        Its tokens are plain ones by definition. So what the round lost is what it took besides them, however fast the machine
        was when their price was measured. ``elapsed``: None for the first round, which also reads the prompt.
        """
        economy, tokens, drafting = self.economy, len(done.tokens), self._drafting
        token = economy.token
        real = tokens + drafting / token
        if not unseen:  # the drafter read along
            watched = economy.writing(tokens, watched=True) - economy.writing(tokens)
            real += max(watched, 0.0)
        if elapsed is None:
            return real
        rest = elapsed - drafting
        writing = done.seconds.get("write", 0.0)
        if not writing:  # without stamped answers there is only the clock
            writing = max(rest - economy.starting * token, 0.0)
        if unseen:
            self._tell_price(writing - economy.beginning, tokens)
        return real + economy.started((economy.beginning + max(rest - writing, 0.0)) / token)

    def _tell_price(self, seconds: float, tokens: int) -> None:
        """Count plain tokens for their price; short rows, also of other answers, are put together until they are long enough."""
        economy = self.economy
        if economy.costs.remote and tokens < ENOUGH:
            return  # a server's price for a request hides what a few tokens cost
        short, count = economy.short
        economy.short = short + max(seconds, 0.0), count + tokens
        if economy.short[1] >= ENOUGH:
            economy.experience.wrote(*economy.short, economy.context or 0)
            economy.short = 0.0, 0


def _passes(done: Round) -> float:
    """Return the seconds of the target's passes in a round; 0 without stamped answers."""
    return done.seconds.get("verify", 0.0) + done.seconds.get("write", 0.0)
