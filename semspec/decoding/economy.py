"""What the problems of a run have learned about a drafter together: costs, chances, and time left to try things.

Time is counted in *plain tokens*: the seconds that the target takes for a token it writes by itself, in a row
of many. Decisions are made by predictions from the cost model, so that with a recorded one they depend on
the text alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

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
)
from semspec.decoding.crowd import HOLD, Crowd
from semspec.decoding.experience import DEBT, EXPLORE, Experience

COPIED, DRAWN = 0.4, 0.75  # the chance of a token of which nothing is known: looked up, by a model
LOOK = 64  # tokens after which it is decided anew, where the load changes
ALLOWANCE = 4.0  # plain tokens that a run may lose at its beginning, while nothing is known
LEARNING = 0.002  # seconds that it may lose there in any case
SELDOM = 0.005  # copies for each token at least, where none was found for long
EARNED = 128.0  # plain tokens of what drafts have really gained that may be lost again
HORIZON = 8  # rounds in which what was lost may be expected to come back
NET = 0.85  # of what was thought before of the worth of asking, at each new answer
NUMBERS = ("bank", "net", "nodes", "spent", "gained", "drafted", "written")  # that are recorded
NODES = 3.0  # of a tree's level, where none was read yet
TREES = 10.0  # trees whose size is averaged: of more, the older ones fade
TRIES = 4.0  # drafts that the target has read, before a drafter that looked promising may be given up for long
# recorded as well; a table from before they were counted is taken to have seen enough
COUNTED = {"trees": TREES, "tries": TRIES, "vain": 0.0}
RATE = 0.98  # of what was counted before of time and tokens, at each new round


@dataclass(slots=True)
class Economy:
    """The shared state of all problems under way; with a recorded table each problem begins with a copy.

    Where the load changes, it decides as well, and there is nothing to be gained by copies.
    """

    costs: Costs
    who: str = "draft"  # whose drafts these are: the run's own, or the pen's ("nested")
    together: int = 1  # problems that share a pass, where that does not change
    model: bool = (
        False  # whether a draft model writes the drafts, so that its speed says what they cost
    )
    beliefs: Beliefs = field(default_factory=Beliefs)
    net: float = 0.0  # gained by asking a drafter that looks things up, on average
    nodes: float = 1.0  # of a tree's level, those that are sent
    trees: float = 0.0  # of which that is the average, at most ``TREES``
    tries: float = 0.0  # a model's drafts that the target has read, at most ``TRIES``
    promising: bool = False  # a model's drafts were expected to pay before any was tried
    spent: float = 20.0  # plain tokens of time, newer ones counting more
    gained: float = 20.0  # tokens in that time
    lengths: list[int] = field(default_factory=list)  # tokens of accepted units
    drafted: float = 0.0  # tokens of a drafted unit on average; 0: none yet
    written: float = 0.0  # tokens of a unit that the target wrote
    found: float = (
        0.2  # copies that are found, for each token that the target writes while there is none
    )
    missed: float = (
        0.0  # what reading costs that a drafter has missed, when that was looked at last
    )
    # what a draft of steps is expected to lose: what may be lost grows until it can be afforded
    wanted: float = 0.0
    tester: object = None  # the one problem that tries a draft, while nothing was kept of any
    vain: float = 0.0  # plain tokens that such tries have cost and that are not made up for
    trial: float = 0.0  # what the last of them has cost by the clock
    warm: bool = False  # the drafter has worked before
    began: bool = False  # the price of a token was known when something was decided
    allowance: float = ALLOWANCE  # what may be lost under a load that was not seen before
    # what may still be lost, by how many problems are under way: what was lost under one load says nothing of another
    banks: dict[int, float] = field(default_factory=dict)
    crowds: dict[int, Crowd] = field(default_factory=dict)  # by how many problems are under way
    _size: int = field(default=0, init=False)  # of the one that is under way
    _since: float | None = field(default=None, init=False)  # when there began to be more or fewer
    # positions before what is decided now; None: not known
    context: int | None = field(default=None, init=False)
    # how much more a plain token takes behind these than behind those where rows were written, and for what that holds
    _growth: float = field(default=1.0, init=False)
    _grown: tuple[object, ...] = field(default=(), init=False)
    experience: Experience = field(default_factory=Experience)

    def opened(self) -> Self:
        """Return the state that a problem begins with."""
        if not self.costs.fixed or self.costs.load:
            return self
        own = copy.copy(self)
        own.beliefs, own.lengths = copy.deepcopy(self.beliefs), list(self.lengths)
        own.banks, own.experience = dict(self.banks), copy.copy(self.experience)
        return own

    @property
    def bank(self) -> float:
        """What may still be lost, with as many problems under way as there are."""
        return self.banks.get(self.company, self.allowance)

    @bank.setter
    def bank(self, tokens: float) -> None:
        self.banks[self.company] = tokens

    @property
    def company(self) -> int:
        """Problems that share a pass at the moment."""
        return self.costs.load or self.together

    def crowd(self, now: float) -> Crowd:
        """Return what has become of drafts with as many problems under way as there are now, if that has lasted for a while."""
        size, under_way = self.company, self.crowds.get(self._size)
        if under_way is not None:
            if size == self._size:
                self._since = None
                return under_way
            self._since = now if self._since is None else self._since
            if now - self._since < HOLD * self.token:
                return under_way
        self.part()
        found = self.crowds.setdefault(size, Crowd(size))
        if near := [one for one in self.crowds.values() if one is not found]:
            found.expect(min(near, key=lambda one: abs(math.log(one.size / size))))
        found.enter(now)
        self._size, self._since = size, None
        return found

    def part(self) -> None:
        """Take note that those who were under way together are so no more."""
        if self._size in self.crowds:
            self.crowds[self._size].leave()
        self._size, self._since = 0, None

    def behind(self, context: int | None) -> None:
        """Take note of how many positions are before what is decided next: prices follow them."""
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
        """Seconds of a plain token; 0 where nothing was measured yet."""
        if self.company == 1 and self.experience.token:
            return self.experience.token * self._growth
        return self.costs.token(self.company, self.context) or 0.0

    @property
    def beginning(self) -> float:
        """Seconds that the first token of a row takes longer than the others."""
        first, token = self._target(WRITE, 1), self.costs.token(self.company, self.context)
        return max(first - token, 0.0) if first and token else 0.0

    def reading(self, fed: float, tree: bool = False) -> float:
        """Return what a pass over so many tokens costs."""
        price = self._plain(self._target(TREE if tree else READ, fed))
        return price * self.experience.factor

    def writing(self, tokens: float, watched: bool = False) -> float:
        """Return what it costs that the target writes so many tokens in a row."""
        return self._plain(self._target(WATCH if watched else WRITE, tokens))

    def asking(self, units: float, chain: bool = False) -> float:
        """Return what a draft of so many units costs: the drafter's own work, and the models it asks.

        ``chain``: of a drafter that grows trees, but is asked for a chain.
        """
        return self._asking(units, CHAIN if chain else ASK) * self.experience.factor

    def _asking(self, units: float, kind: str) -> float:
        curve = self.costs.curve(self.who, kind, self.company)
        if curve is None and not self.model:
            # a tree's level and a chain's token stand in for each other
            curve = self.costs.curve(self.who, ASK if kind == CHAIN else CHAIN, self.company)
        if curve is None and self.model:
            asked = "draft", WRITE
        else:
            asked = self.who, kind
        if curve is None:
            return self._plain(self.costs.seconds(*asked, units, self.company, self.context))
        found = curve.at(units, self.context)
        least = curve.least
        if units < least:  # shorter than any that was measured: mostly, a draft costs by its length
            found *= 0.25 + 0.75 * units / least
        return self._plain(found)

    def asking_steps(self, steps: int, tokens: float) -> float:
        """Return what a draft of so many steps costs, of so many tokens each.

        Where none was made beside so many problems, it is the price of those beside most nearly as many, or of the model's tokens.
        """
        costs, who, company = self.costs, self.who, self.company
        made = [n for one, kind, n in costs.curves if (one, kind) == (who, ASK)]
        if not made:
            return self._asking(steps * tokens if self.model else steps, ASK)
        near = min(made, key=lambda n: abs(math.log(n / company)))
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
        """Time that a token takes at present, in plain tokens: what a gained token is worth."""
        return min(self.spent / self.gained, 1.0)

    def went(self, spent: float, gained: int) -> None:
        """Count a round: its time, as predicted, and the tokens that came of it."""
        self.spent = RATE * self.spent + spent
        self.gained = RATE * self.gained + gained
        self.experience.old += gained
        # up to what it takes to wake a drafter: a first time that was slow is not the last one
        most = ALLOWANCE + max(self.experience.waking, self.missed, self.wanted)
        self.bank = max(self.bank, min(self.bank + EXPLORE * gained, most))

    def looked(self, found: bool, alone: int) -> None:
        """Count a question to a drafter that looks things up, and the tokens that are written if it has found nothing."""
        if found:
            self.found += 0.05 * (1 - self.found)
        else:
            self.found = max(0.95 ** min(alone, 64) * self.found, SELDOM)

    def begin(self) -> None:
        """Allow for what is lost while nothing is known, once the price of a token is: with a small model all is overhead."""
        if not self.began and self.token and not self.costs.fixed:
            self.began, self.bank = True, max(self.bank, LEARNING / self.token)

    def settle(self, paid: float, gain: float, company: int = 0) -> None:
        """Count what a round has really gained (below 0: lost), in place of what was paid for it beforehand.

        ``company``: that it was paid under, where there are other numbers of problems under way by now.
        """
        company = company or self.company
        bank = self.banks.get(company, self.allowance)
        self.banks[company] = max(min(bank + paid + gain, EARNED), -DEBT)

    @property
    def level(self) -> float:
        """Nodes of a tree's level that are read, on average."""
        return self.nodes if self.trees else NODES

    def sent(self, nodes: float) -> None:
        """Count a tree of which so many nodes of each level are read."""
        self.trees = min(self.trees + 1, TREES)
        self.nodes += (nodes - self.nodes) / self.trees

    def tried(self) -> None:
        """Count a draft that the target has read."""
        self.tries = min(self.tries + 1, TRIES)

    def affords(self, loss: float, waking: float = 0.0, anyway: bool = False) -> bool:
        """Tell whether something may be tried that is expected to lose so much (``anyway``: it may); it is then paid for."""
        if not (anyway or self.may_lose(loss, waking)):
            return False
        if loss > 0:
            self.bank -= loss + waking
        return True

    def may_lose(self, loss: float, waking: float = 0.0) -> bool:
        """Tell whether so much may be lost.

        What is expected to gain (``loss`` is not above 0) may be tried unless drafts owe more than so large a gain would pay back
        in ``HORIZON`` rounds. ``waking``: plain tokens that its drafter needs first, once, to read what it has not seen.
        """
        if loss <= 0:
            return self.bank - waking >= HORIZON * loss
        return self.bank >= loss + waking

    def pause(self, loss: float) -> int:
        """Return how many tokens are written plainly until such a loss can be afforded again.

        Where the load changes, what would be lost now may be a gain soon: it is looked at anew after a few.
        """
        tokens = max(1, math.ceil((max(loss, 0.0) - self.bank) / EXPLORE))
        return min(tokens, LOOK) if self.costs.load else tokens

    def told(self) -> dict[str, Any]:
        """Return the state, without the costs, as JSON."""
        return {
            **{name: getattr(self, name) for name in (*NUMBERS, *COUNTED)},
            "lengths": self.lengths,
            "beliefs": self.beliefs.told(),
            "experience": self.experience.told(),
        }

    def recall(self, told: Mapping[str, Any]) -> None:
        """Take up what ``told`` returned; raise ValueError, KeyError or TypeError if it is something else."""
        numbers = {**COUNTED, **told}
        for name in (*NUMBERS, *COUNTED):
            value = float(numbers[name])
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}")
            setattr(self, "allowance" if name == "bank" else name, value)
        if self.gained <= 0:
            raise ValueError("gained is not above 0")
        # tables of before semspec counted it have none
        experience = told.get("experience", {})
        if not isinstance(experience, Mapping):
            raise ValueError(f"experience is {experience}")
        self.experience = Experience.of(experience)
        self.lengths = [int(length) for length in told["lengths"]]
        self.beliefs = Beliefs.of(told["beliefs"], self.beliefs.first)
