"""The budget where whole steps are the unit: how many to draft.

After a rejection, a rule for steps has the target write the step anew; a rule for tokens keeps the tokens before the
rejected one and writes one itself. The first is counted in steps, the second in tokens.

At first nothing is known about a draft model, and a failed draft costs as much as the target needs for a good part of a
step. So the target writes the first step, which shows how long steps are. Then one problem at a time tries drafts of
about that length, until some draft is accepted. The cost of failed tries is summed over all problems and loads, minus
``EXPLORE`` of the time since. The next try waits until the sum plus its own cost is at most ``FREE``. All problems under way
wait while the target reads one problem's draft and the text after it, so a try costs each of them what it costs its own
problem: a token counts as time only for the problem that wrote it, one of ``company``.

Lookups are decided in ``budget_copied_steps``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from semspec.decoding.beliefs import Signal, deep
from semspec.decoding.economy import Economy
from semspec.decoding.experience import EXPLORE
from semspec.types import Draft, Round, Turns

FADES = 0.9  # weight of the average step length at each new step
SHORTEST = 16  # least tokens of a step that is tried
# plain tokens that failed tries may cost: four or five tries of a small model, two of one nearly as slow as the target
FREE = 40.0
KNOWN = 20  # accepted steps that tell how long drafts may be
RUNAWAY = 4.0  # times the target's average step that a draft may take until then
NOTHING = 1e-9


@dataclass(slots=True, kw_only=True, eq=False)
class AdaptiveSteps:
    """The pace of one problem where steps are the unit."""

    economy: Economy
    longest: int  # most steps of a draft
    cap: int  # most tokens of a step
    by_token: bool = False  # the rule keeps single tokens and writes one itself
    resting: bool = field(default=False, init=False)
    chain: bool = field(default=False, init=False)
    gives_way: bool = field(default=False, init=False)
    turns: Turns | None = field(default=None, init=False)
    # how much of the last draft was kept: 0 none, 1 some, 2 all
    heat: str = field(default="1", init=False)
    _alone: int = field(default=1, init=False)
    _asked: int = field(default=0, init=False)
    _loses: bool = field(default=False, init=False)  # this round's draft is expected to lose
    _paid: float = field(default=0.0, init=False)  # paid beforehand for this round
    _signal: Signal = field(default=(), init=False)
    _context: int | None = field(default=None, init=False)  # context length before the draft
    # when the round began, if known; not in the first one, whose time also contains the prompt, and whoever came before
    _since: float | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)  # a round is over
    _lent: bool = field(default=False, init=False)  # this round's draft is not of this drafter
    _drafting: float = field(default=0.0, init=False)  # plain tokens that this round's draft took

    @property
    def onward(self) -> bool:
        return not self._asked

    def behind(self, context: int) -> None:
        self._context = context

    def units(self) -> int:
        self.economy.behind(self._context)
        self._alone, self._asked, self._signal = 1, 0, ("before", self.heat)
        self._loses, self.resting = False, False
        self._since = self.economy.costs.clock if self._begun else None
        self._choose()
        if self._asked and self._unproven:
            self.economy.tester = self
        return self._asked

    def _choose(self) -> None:
        """Choose how many steps to draft, or how many to let the target write."""
        economy = self.economy
        if not economy.token or (economy.written and not economy.drafted and self._may_try()):
            self._asked = 1  # nothing was measured yet
        elif economy.drafted and economy.written:
            self._decide()

    def _decide(self) -> None:
        """Draft the number of steps that pays best, if its loss can be afforded."""
        economy = self.economy
        best, most, loss = 1, 0.0, 0.0
        for length in range(1, self.longest + 1):
            gained, spent = self._expected(length, economy.drafted)
            spent += economy.asking_steps(length, economy.drafted)
            if gained > most * spent:
                best, most, loss = length, gained / max(spent, NOTHING), spent - gained
        economy.wanted = max(loss, 0.0)
        if self._may_try() and (self._promises() or self._affords(loss)):
            self._asked, self._loses = 1 if self._unproven else best, loss > 0
        else:
            if self._promises():  # until the next try may be made
                loss = economy.bank + economy.vain + self._trying() - FREE
            self._alone = max(1, int(economy.pause(loss) / economy.written))

    def _affords(self, loss: float, missed: float = 0.0) -> bool:
        """Return whether a draft with this expected loss can be afforded, and pay for it beforehand.

        ``missed``: cost of what the drafter has to read first.
        """
        if not self.economy.affords(loss, missed):
            return False
        self._paid += loss + missed if loss > 0 else 0.0
        return True

    @property
    def _unproven(self) -> bool:
        """True while nothing that a draft model wrote was accepted."""
        return not self.economy.beliefs.ever

    def _may_try(self) -> bool:
        """Return whether this problem may draft; while the model is unproven, one problem tries at a time, and seldom."""
        vain, tester = self.economy.vain, self.economy.tester
        if not self._unproven:
            return True
        return (tester is None or tester is self) and (not vain or vain + self._trying() <= FREE)

    def _promises(self) -> bool:
        """Return whether an unproven draft would pay if it were right."""
        return self._unproven and self._trying() < self.economy.writing(self.economy.written)

    def _trying(self) -> float:
        """Return the cost of drafting and reading a step: the larger of the predicted and the last measured cost."""
        economy, tokens = self.economy, self.economy.drafted
        predicted = economy.asking_steps(1, tokens) + economy.reading(1 + tokens)
        return max(predicted, economy.trial)

    def _count_try(self, tokens: int) -> None:
        """Count the cost of a failed try, by the clock if there is one, less the tokens its round brought."""
        economy, now = self.economy, self.economy.costs.clock
        if self._since is not None and now is not None and economy.token:
            economy.trial = min((now - self._since) / economy.token - tokens, FREE)
        economy.vain += self._trying()

    def _expected(self, length: int, tokens: float) -> tuple[float, float]:
        """Return the gain of ``length`` steps of ``tokens`` each, and the cost of reading them and rewriting a rejected one.

        Both in plain tokens: a step is worth what the target needs to write it.
        """
        economy, whole = self.economy, 1.0
        reading = economy.reading(1 + length * tokens)
        if self.by_token:
            gained = 1.0
            for depth in range(1, int(length * tokens) + 1):
                whole *= self._chance(depth)
                gained += whole
                if whole < NOTHING:
                    break
            return gained, reading
        kept = 0.0
        for depth in range(1, length + 1):
            whole *= self._chance(depth)
            kept += whole
        step = economy.writing(economy.written)
        return (kept + 1 - whole) * step, reading + (1 - whole) * step

    def _chance(self, depth: int) -> float:
        return self.economy.beliefs.chance((*self._signal, deep(depth)))

    def unit_cap(self) -> int:
        """Return the most tokens of a drafted step, to stop runaway drafts.

        At first, and where a draft is expected to lose, that is the length of the target's own steps, then ``RUNAWAY`` times as
        much, and once ``KNOWN`` drafted steps were accepted, twice the 95 % quantile of their lengths.
        """
        lengths, written = self.economy.lengths, self.economy.written
        if (self._unproven or self._loses) and written:
            return min(self.cap, max(SHORTEST, int(written)))
        if len(lengths) < KNOWN:
            return min(self.cap, max(SHORTEST, int(RUNAWAY * written))) if written else self.cap
        ordered = sorted(lengths)
        return min(self.cap, max(8, 2 * ordered[int(0.95 * (len(ordered) - 1))]))

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        economy, context = self.economy, self._context or 0
        economy.costs.add(economy.who, "ask", economy.company, units, seconds, context)
        self._drafting = seconds / economy.token if economy.token else 0.0

    def cut(self, draft: Draft) -> None:
        economy = self.economy
        economy.behind(self._context)
        self._lent = draft.lent and bool(draft.tokens)
        if draft.tokens and not draft.lent:
            for start, end in pairwise([0, *draft.ends]):
                economy.drafted = _averaged(economy.drafted, end - start)

    def alone(self, left: int) -> int:
        return max(1, min(self._alone, left))

    def over(self) -> None:
        self._let_others_try()

    def _let_others_try(self) -> None:
        if self.economy.tester is self:
            self.economy.tester = None

    def observe(self, done: Round) -> None:
        economy = self.economy
        self._let_others_try()
        if done.handed_ends:
            for start, end in pairwise([0, *done.handed_ends]):
                economy.written = _averaged(economy.written, end - start)
        elif done.handed:
            economy.written = _averaged(economy.written, len(done.handed))
        elif not economy.written and done.kept:  # stands in until the target writes a step itself
            economy.written = economy.drafted
        self._count(done)
        self._begun, self._paid = True, 0.0
        if self._lent or not done.drafted:
            return
        size = len(done.drafted) if self.by_token else len(done.ends)
        kept = len(done.kept) if self.by_token else done.units_kept
        tried = range(1, min(kept + 1, size) + 1)
        economy.beliefs.learn(
            (((*self._signal, deep(depth)), depth <= kept) for depth in tried), at_once=True
        )
        if self._unproven:
            self._count_try(len(done.tokens))
        else:  # before the first success ``heat`` says nothing
            self.heat = "2" if kept == size else "1" if kept else "0"
        economy.lengths += [b - a for a, b in pairwise([0, *done.ends[: done.units_kept]])]
        del economy.lengths[:-200]

    def _count(self, done: Round) -> None:
        """Count the time of a round, in plain tokens, of which each problem writes one in the time of one."""
        economy, time = self.economy, len(done.tokens) / self.economy.company
        economy.went(0.0, time)
        economy.vain = max(economy.vain - EXPLORE * time, 0.0)
        if self._lent:  # these drafts were none of this drafter's
            economy.settle(self._paid, 0.0)
        elif self._asked and not done.drafted:  # a gate closed at once, and the asking was lost
            # an answer's first question also reads its prompt
            lost = min(self._drafting or economy.asking_steps(1, 1.0), FREE if self._begun else 1.0)
            economy.vain += lost if self._unproven else 0.0
            economy.settle(self._paid, 0.0 if self._unproven else -lost)
            # as good as rejected: the next one is expected to bring less
            economy.beliefs.learn([((*self._signal, deep(1)), False)], at_once=True)
            self.heat = self.heat if self._unproven else "0"
        elif done.drafted and not self._unproven:
            economy.settle(self._paid, len(done.tokens) - self._took(done))

    def _took(self, done: Round) -> float:
        """Return the predicted time of a round with a draft, in plain tokens."""
        economy, steps = self.economy, len(done.ends) or 1
        spent = economy.asking_steps(steps, len(done.drafted) / steps)
        return spent + self._read_and_written(done)

    def _read_and_written(self, done: Round) -> float:
        """Return the predicted time that the target took for a round with a draft, in plain tokens."""
        read = self.economy.reading(1 + len(done.drafted))
        return read + (self.economy.writing(len(done.handed)) if done.handed else 0.0)


def _averaged(average: float, value: int) -> float:
    return FADES * average + (1 - FADES) * value if average else float(value)
