"""The same budget where whole steps are the unit: how many to draft, and whether a looked-up step is worth reading.

A rule for steps has the target write a rejected one anew; a rule for tokens keeps the tokens before the first
that it rejects, and writes one itself. The first is counted in steps, the second in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from semspec.decoding.beliefs import Signal, deep
from semspec.decoding.economy import Economy
from semspec.decoding.trim import shorten
from semspec.types import Draft, Round, Turns

FADES = 0.9  # of the average length of a step, at each new one
NOTHING = 1e-9


@dataclass(slots=True, kw_only=True)
class AdaptiveSteps:
    """The pace of one problem where steps are the unit."""

    economy: Economy
    longest: int  # steps of a draft at most
    cap: int  # tokens in a step at most
    copies: bool = False  # what it drafts was looked up: point masses
    by_token: bool = False  # the rule keeps single tokens, and writes one itself
    resting: bool = field(default=False, init=False)
    chain: bool = field(default=False, init=False)
    gives_way: bool = field(default=False, init=False)
    turns: Turns | None = field(default=None, init=False)
    # how the draft before went: 0 none of it was kept, 2 all of it
    heat: str = field(default="1", init=False)
    _alone: int = field(default=1, init=False)
    _asked: int = field(default=0, init=False)
    _signal: Signal = field(default=(), init=False)
    _context: int | None = field(default=None, init=False)  # positions before the draft

    def behind(self, context: int) -> None:
        self._context = context

    def units(self) -> int:
        self.economy.behind(self._context)
        self._alone, self._asked, self._signal = 1, 0, ("before", self.heat)
        economy = self.economy
        if not economy.token or not (economy.drafted and economy.written):
            self._asked = 1  # nothing was measured yet
            return 1
        best, most, loss = 1, 0.0, 0.0
        for length in range(1, self.longest + 1):
            gained, spent = self._expected(length, economy.drafted)
            spent += economy.asking(length)
            if gained > most * spent:
                best, most, loss = length, gained / max(spent, NOTHING), spent - gained
        if economy.affords(loss):
            self._asked = best
        else:
            self._alone = max(1, int(economy.pause(loss) / economy.written))
        return self._asked

    def _expected(self, length: int, tokens: float) -> tuple[float, float]:
        """Return what steps of so many tokens gain, and what reading them costs, a rewritten one included.

        Both in plain tokens: a step is worth what it costs that the target writes it.
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
        """Return twice the 95 % quantile of accepted steps, to stop drafts that run on."""
        lengths = self.economy.lengths
        if len(lengths) < 20:
            return self.cap
        ordered = sorted(lengths)
        return min(self.cap, max(8, 2 * ordered[int(0.95 * (len(ordered) - 1))]))

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        economy, context = self.economy, self._context or 0
        economy.costs.add(economy.who, "ask", economy.company, units, seconds, context)

    def cut(self, draft: Draft) -> None:
        """Drop looked-up steps whose match says that they are not worth a pass."""
        economy = self.economy
        economy.behind(self._context)
        if draft.tokens:
            for start, end in pairwise([0, *draft.ends]):
                economy.drafted = _averaged(economy.drafted, end - start)
        if not self.copies or not draft.tokens or not (economy.token and economy.written):
            return
        if draft.probs is not None:  # drawn, if not by every draft of its drafter
            return
        self._signal = (f"{draft.found[:3]} m{draft.grade}", self.heat)
        length, most, loss = 0, 0.0, 0.0
        for count, end in enumerate(draft.ends, start=1):
            gained, spent = self._expected(count, end / count)
            if gained - spent > most or (count == 1 and gained <= spent):
                length, most, loss = count, max(gained - spent, 0.0), spent - gained
        if most > 0 or economy.affords(loss):
            shorten(draft, draft.ends[length - 1])
        else:
            shorten(draft, 0)

    def alone(self, left: int) -> int:
        return self._alone

    def over(self) -> None:
        """Do nothing: what steps cost is what was predicted."""

    def observe(self, done: Round) -> None:
        economy = self.economy
        if done.handed_ends:
            for start, end in pairwise([0, *done.handed_ends]):
                economy.written = _averaged(economy.written, end - start)
        elif done.handed:
            economy.written = _averaged(economy.written, len(done.handed))
        elif not economy.written and done.kept:  # until the target writes one itself
            economy.written = economy.drafted
        economy.went(0.0, len(done.tokens))
        if not done.drafted:
            return
        size = len(done.drafted) if self.by_token else len(done.ends)
        kept = len(done.kept) if self.by_token else done.units_kept
        economy.beliefs.learn(
            ((*self._signal, deep(depth)), depth <= kept)
            for depth in range(1, min(kept + 1, size) + 1)
        )
        self.heat = "2" if kept == size else "1" if kept else "0"
        economy.lengths += [b - a for a, b in pairwise([0, *done.ends[: done.units_kept]])]
        del economy.lengths[:-200]


def _averaged(average: float, value: int) -> float:
    return FADES * average + (1 - FADES) * value if average else float(value)
