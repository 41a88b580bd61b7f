"""What all problems of a run have learned about a drafter: costs, acceptance rates, and how much trying may still cost.

Time is counted in *plain tokens*: one is the time the target takes to write a token by itself, in a row of
many. Decisions rest on predictions of the cost model; with a recorded cost model they depend on the text
alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

from semspec.decoding.beliefs import Beliefs
from semspec.decoding.costs import (
    ASK,
    CHAIN,
    READ,
    REFIT,
    STEP,
    TREE,
    WATCH,
    WRITE,
    Costs,
    nearest,
)
from semspec.decoding.crowd import Crowd, Crowds
from semspec.decoding.experience import DEBT, EXPLORE, OUTLIER, Experience

T = TypeVar("T")

# acceptance rate assumed of a token while nothing is known: of a lookup's, of a model's
COPIED, DRAWN = 0.4, 0.75
LOOK = 64  # tokens after which to decide anew where the load changes
FOREVER = 1 << 30  # tokens: the rest of a problem
ABSENT = 256  # least tokens that a drafter which reads along sits out
ALLOWANCE = 4.0  # plain tokens that a run may lose at its start, while nothing is known
LEARNING = 0.002  # seconds that it may lose there in any case
SELDOM = 0.005  # least copies per token to expect, after long without one
EARNED = 128.0  # most plain tokens of measured gain that may be lost again
HORIZON = 8  # rounds in which an expected gain has to pay back the debt
NET = 0.85  # weight of the earlier estimate of what asking is worth, at each new answer
NUMBERS = ("bank", "net", "nodes", "spent", "gained", "drafted", "written")  # recorded fields
NODES = 3.0  # nodes assumed per level of a tree before any tree was read
TREES = 10.0  # trees in the average size; beyond that, older ones fade
TRIES = 24.0  # drafts the target must have read before a promising drafter may be given up for long
# recorded too, with the default for older tables, which did not count them: enough was seen
COUNTED = {"trees": TREES, "tries": TRIES, "vain": 0.0}
STARTS = (
    0.9  # weight of the earlier estimate of what a round without a draft costs, at each new one
)
HOPEFUL = 2.0  # times EXPLORE that drafts of a promising model may cost
RATE = 0.98  # weight of the time and tokens counted so far, at each new round


@dataclass(slots=True)
class Economy:
    """The state that all running problems share; with a recorded table each problem begins with a copy.

    Where the load changes, decisions follow the load too, so copies would not make them repeatable.
    """

    costs: Costs
    who: str = "draft"  # whose drafts: the run's own, or the pen's ("nested")
    together: int = 1  # problems that share a pass, if that number is constant
    # a draft model writes the drafts, so its speed says what they cost
    model: bool = False
    beliefs: Beliefs = field(default_factory=Beliefs)
    net: float = 0.0  # average gain of asking a lookup drafter
    nodes: float = 1.0  # average nodes sent per level of a tree
    trees: float = 0.0  # number of trees in that average, at most ``TREES``
    tries: float = 0.0  # drafts of a model that the target has read, at most ``TRIES``
    promising: bool = False  # before any was tried, a model's drafts were expected to pay
    spent: float = 20.0  # faded sum of time, in plain tokens
    gained: float = 20.0  # faded sum of tokens in that time
    lengths: list[int] = field(default_factory=list)  # tokens of accepted units
    drafted: float = 0.0  # average tokens of a drafted unit; 0: none yet
    written: float = 0.0  # average tokens of a unit that the target wrote
    # copies found per token that the target writes while there is none
    found: float = 0.2
    # last known cost of reading what a drafter has missed
    missed: float = 0.0
    # average plain tokens that a round without a draft costs besides its tokens and the search for a draft; 0: not known yet
    starting: float = 0.0
    # expected loss of a draft of steps, or of a head's tries in one answer: the bank may grow until it can afford it
    wanted: float = 0.0
    tester: object = None  # the one problem that tries drafts, until a first draft is accepted
    vain: float = 0.0  # plain tokens that failed tries have cost and that are not yet made up for
    trial: float = 0.0  # what the last failed try cost by the clock
    # short rows of plain tokens that together are not yet enough for a price: seconds, tokens
    short: tuple[float, int] = (0.0, 0)
    warm: bool = False  # the drafter has worked before
    answers: int = 0  # problems begun; not counted where each has a copy
    began: bool = False  # ``begin`` has run with a known price of a token
    allowance: float = ALLOWANCE  # the bank under a load not seen before
    # what may still be lost, by number of running problems: a loss under one load says nothing of another
    banks: dict[int, float] = field(default_factory=dict)
    crowds: Crowds = field(default_factory=Crowds)
    # context length at the current decision; None: not known
    context: int | None = field(default=None, init=False)
    # cost of a plain token at this context over its cost where rows were measured, and what that was computed for
    _growth: float = field(default=1.0, init=False)
    _grown: tuple[object, ...] = field(default=(), init=False)
    experience: Experience = field(default_factory=Experience)
    # what problems of a crowd have decided alike in this turn, and when it began
    _alike: dict[Hashable, object] = field(default_factory=dict, init=False)
    _turn: float | None = field(default=None, init=False)

    def opened(self) -> Self:
        """Return the state for a new problem: this one, or a copy with a recorded table."""
        if not self.costs.fixed or self.costs.load:
            self.answers += 1
            return self
        own = copy.copy(self)
        own.beliefs, own.lengths = copy.deepcopy(self.beliefs), list(self.lengths)
        own.banks, own.experience = dict(self.banks), copy.copy(self.experience)
        return own

    def apart(self) -> Self:
        """Return a state for another rule or sampling, under which other drafts are accepted.

        It shares costs and what drafts bring under each load, and knows nothing of this one's acceptance and gains. With a
        recorded table, that table decides.
        """
        if self.costs.fixed:
            return self
        first = Beliefs(self.beliefs.first)
        own = type(self)(self.costs, self.who, self.together, self.model, first)
        own.experience, own.crowds, own.starting = self.experience, self.crowds, self.starting
        own.warm, own.began = self.warm, self.began
        own.allowance = max(min(self.bank, ALLOWANCE), 0.0)
        return own

    @property
    def bank(self) -> float:
        """Plain tokens that may still be lost under the current load."""
        return self.banks.get(self.company, self.allowance)

    @bank.setter
    def bank(self, tokens: float) -> None:
        self.banks[self.company] = tokens

    @property
    def paid_off(self) -> bool:
        """True if drafts have gained clearly more than they may lose at a run's start."""
        return self.bank >= EARNED / 4

    @property
    def company(self) -> int:
        """Problems that share a pass now."""
        return self.costs.load or self.together

    def crowd(self, now: float) -> Crowd:
        """Return the record of drafts under the current load."""
        return self.crowds.running(self.company, now, self.token)

    def alike(self, what: tuple[Hashable, ...], decide: Callable[[], T]) -> T:
        """Return what the first problem of a crowd with the same question has decided in this turn."""
        if self._turn != self.costs.clock:
            self._turn, self._alike = self.costs.clock, {}
        key = self.company, *what
        if key not in self._alike:
            self._alike[key] = decide()
        return cast(T, self._alike[key])

    def behind(self, context: int | None) -> None:
        """Note the context length at the next decision: prices depend on it."""
        self.context = context
        written = self.costs.curve("target", WRITE, 1)
        if context is None or written is None:
            return
        measured = self.experience.rows, written.version // REFIT
        if self._grown != (grown := (context // STEP, *measured)):
            self._grown, self._growth = grown, 1.0
            if (before := self.experience.context) is not None:
                now, then = self.costs.token(1, context), self.costs.token(1, before)
                self._growth = now / then if now and then else 1.0

    @property
    def token(self) -> float:
        """Seconds of a plain token; 0 if nothing was measured yet."""
        if self.company == 1 and self.experience.token:
            return self.experience.token * self._growth
        return self.known(self.company)

    def known(self, load: int) -> float:
        """Return the seconds of a plain token under a load, by the price of single queries; 0 if nothing was measured yet."""
        return self.costs.token(load, self.context) or 0.0

    @property
    def beginning(self) -> float:
        """Extra seconds of the first token of a row on a server, compared with the others.

        An engine in this process has none: 1 to 16 tokens in a row took it the same time per token.
        """
        if not self.costs.remote:
            return 0.0
        first, token = self._target(WRITE, 1), self.costs.token(self.company, self.context)
        return max(first - token, 0.0) if first and token else 0.0

    def reading(self, fed: float, tree: bool = False) -> float:
        """Return the cost of a pass over ``fed`` tokens."""
        price = self._plain(self._target(TREE if tree else READ, fed))
        return price * self.experience.factor

    def writing(self, tokens: float, watched: bool = False) -> float:
        """Return the cost of ``tokens`` that the target writes in a row."""
        return self._plain(self._target(WATCH if watched else WRITE, tokens))

    def asking(self, units: float, chain: bool = False) -> float:
        """Return the cost of a draft of ``units``: the drafter's own work and the models it asks.

        ``chain``: a drafter that grows trees is asked for a chain.
        """
        return self._asking(units, CHAIN if chain else ASK) * self.experience.factor

    def _asking(self, units: float, kind: str) -> float:
        curve = self.costs.curve(self.who, kind, self.company)
        if curve is None and not self.model:
            # a level of a tree stands in for a token of a chain, and vice versa
            curve = self.costs.curve(self.who, ASK if kind == CHAIN else CHAIN, self.company)
        if curve is None and self.model:
            asked = "draft", WRITE
        else:
            asked = self.who, kind
        if curve is None:
            return self._plain(self.costs.seconds(*asked, units, self.company, self.context))
        found = curve.at(units, self.context)
        least = curve.least
        if units < least:  # shorter than any measured: most of a draft's cost grows with its length
            found *= 0.25 + 0.75 * units / least
        return self._plain(found)

    def asking_steps(self, steps: int, tokens: float) -> float:
        """Return the cost of a draft of ``steps`` with ``tokens`` each.

        If none was made under this load, use the nearest load's price, or else the price of the model's tokens.
        """
        costs, who, company = self.costs, self.who, self.company
        made = [n for one, kind, n in costs.curves if (one, kind) == (who, ASK)]
        if not made:
            return self._asking(steps * tokens if self.model else steps, ASK)
        near = nearest(made, company)
        if near == company:
            return self.asking(steps)
        seconds = costs.seconds(who, ASK, steps, near, self.context)
        token = costs.token(near, self.context)
        return seconds / token if seconds and token else 0.0

    def _target(self, kind: str, size: float) -> float | None:
        return self.costs.seconds("target", kind, size, self.company, self.context)

    def _plain(self, seconds: float | None) -> float:
        token = self.token
        return seconds / token if seconds and token else 0.0

    @property
    def rate(self) -> float:
        """Current time per token, in plain tokens: what one more token is worth."""
        return min(self.spent / self.gained, 1.0)

    @property
    def explore(self) -> float:
        """Share of the time that drafts with an expected loss may cost."""
        return EXPLORE * (HOPEFUL if self.promising else 1.0)

    def went(self, spent: float, gained: float) -> None:
        """Count a round: its time and the tokens it brought."""
        self.spent = RATE * self.spent + spent
        self.gained = RATE * self.gained + gained
        self.experience.old += gained
        # the bank may grow until it can wake a drafter: one slow start must not be the last
        most = ALLOWANCE + max(self.experience.waking, self.missed, self.wanted)
        self.bank = max(self.bank, min(self.bank + self.explore * gained, most))

    def looked(self, found: bool, alone: int) -> None:
        """Count a question to a lookup drafter; ``alone``: the tokens written if it found nothing."""
        if found:
            self.found += 0.05 * (1 - self.found)
        else:
            self.found = max(0.95 ** min(alone, 64) * self.found, SELDOM)

    def begin(self) -> None:
        """Once the price of a token is known, allow for ``LEARNING`` seconds, since a small model is mostly overhead."""
        if not self.began and self.token and not self.costs.fixed:
            self.began, self.bank = True, max(self.bank, LEARNING / self.token)

    def settle(self, paid: float, gain: float, company: int = 0) -> None:
        """Replace what was paid for a round beforehand by what it really gained (negative: lost).

        ``company``: the load it was paid under, if the load has changed since.
        """
        company = company or self.company
        bank = self.banks.get(company, self.allowance)
        self.banks[company] = max(min(bank + paid + gain, EARNED), -DEBT)

    @property
    def level(self) -> float:
        """Average nodes read per level of a tree."""
        return self.nodes if self.trees else NODES

    def started(self, tokens: float) -> float:
        """Count what a round without a draft cost besides its tokens, an interruption only in part; return what counts."""
        known = self.starting
        if known:
            tokens = min(tokens, OUTLIER * known)
        self.starting = known + (tokens - known) * (1 - STARTS) if known else tokens
        return tokens

    def sent(self, nodes: float) -> None:
        """Count a tree with so many nodes read per level."""
        self.trees = min(self.trees + 1, TREES)
        self.nodes += (nodes - self.nodes) / self.trees

    def tried(self) -> None:
        """Count a draft that the target has read."""
        self.tries = min(self.tries + 1, TRIES)

    def affords(self, loss: float, waking: float = 0.0, anyway: bool = False) -> bool:
        """Return whether a draft with this expected loss may be tried (``anyway``: always), and pay for it."""
        if not (anyway or self.may_lose(loss, waking)):
            return False
        if loss > 0:
            self.bank -= loss + waking
        return True

    def may_lose(self, loss: float, waking: float = 0.0) -> bool:
        """Return whether this expected loss can be afforded.

        An expected gain (``loss`` <= 0) may be tried unless the debt is more than the gain would pay back in ``HORIZON``
        rounds. ``waking``: plain tokens that the drafter first needs to read what it has not seen.
        """
        if loss <= 0:
            return self.bank - waking >= HORIZON * loss
        return self.bank >= loss + waking

    def pause(self, loss: float) -> int:
        """Return how many tokens to write plainly until this loss can be afforded again.

        Where the load changes, a loss now may soon be a gain, so this is at most ``LOOK``.
        """
        tokens = max(1, math.ceil((max(loss, 0.0) - self.bank) / self.explore))
        return min(tokens, LOOK) if self.costs.load else tokens

    def absence(self, loss: float, catching_up: Callable[[int], float]) -> int:
        """Return how many tokens a drafter that reads along sits out: until this loss and ``catching_up`` on them can be afforded.

        Where reading what was missed costs more than ``explore`` of the time, that never happens (``FOREVER``); on an accelerator, which
        reads a thousand tokens in the time of a few, it does in a long answer.
        """
        if self.costs.load:
            return LOOK
        tokens = ABSENT
        while tokens < FOREVER:
            needed = max(loss, 0.0) + catching_up(tokens)
            if self.bank + self.explore * tokens >= needed:
                self.wanted = needed
                return tokens
            tokens *= 2
        return FOREVER

    def told(self) -> dict[str, Any]:
        """Return the state as JSON, without the costs."""
        return {
            **{name: getattr(self, name) for name in (*NUMBERS, *COUNTED)},
            "lengths": self.lengths,
            "beliefs": self.beliefs.told(),
            "experience": self.experience.told(),
        }

    def recall(self, told: Mapping[str, Any]) -> None:
        """Restore what ``told`` returned; raise ValueError, KeyError or TypeError if it is something else."""
        numbers = {**COUNTED, **told}
        for name in (*NUMBERS, *COUNTED):
            value = float(numbers[name])
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}")
            setattr(self, "allowance" if name == "bank" else name, value)
        if self.gained <= 0:
            raise ValueError("gained is not above 0")
        # older tables have none
        experience = told.get("experience", {})
        if not isinstance(experience, Mapping):
            raise ValueError(f"experience is {experience}")
        self.experience = Experience.of(experience)
        self.lengths = [int(length) for length in told["lengths"]]
        self.beliefs = Beliefs.of(told["beliefs"], self.beliefs.first)
