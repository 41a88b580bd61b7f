"""The model's next-token distributions, and cells to count outcomes of several tokens in.

A *law* is the distribution that a token is drawn from: after temperature, top-k, top-p and min-p, in the order of
``decoding.sampling``. An *outcome* is the next k tokens after a prefix. There are too many outcomes to count each, so
a ``Partition`` follows the most likely tokens and lumps the others together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from semspec.decoding.sampling import probabilities
from semspec.deferred import Tensor
from semspec.errors import UserError
from semspec.types import Sampling

Token = int | str  # its id, or its text if a server reports nothing else
Tokens = tuple[Token, ...]

END: Token = "\0end"  # ends an outcome that is shorter than asked: the end of the text
LISTED = 64  # the most tokens that a law lists one by one
UNSURE = 0.002  # so much of the mass may be uncertain if a server lists only its most likely tokens
NOTHING = 1e-9  # a smaller probability is rounding
AHEAD = 4  # nodes whose laws are requested together


@dataclass(frozen=True)
class Law:
    """The most likely next tokens in descending order, and the total mass of all others."""

    tokens: Tokens
    probs: tuple[float, ...]
    rest: float = 0.0
    _at: Mapping[Token, int] = field(init=False, repr=False, compare=False)
    _before: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_at", {token: i for i, token in enumerate(self.tokens)})
        object.__setattr__(self, "_before", tuple(accumulate(self.probs, initial=0.0)))

    def of(self, token: Token) -> float:
        """Return a token's probability; 0 if it is not listed."""
        return self.probs[at] if (at := self._at.get(token)) is not None else 0.0

    def possible(self, token: Token) -> bool:
        """Return whether the token can be drawn at all."""
        return token in self._at or self.rest > NOTHING

    def place(self, token: Token, uniform: float) -> float:
        """Return the mass of all more likely tokens plus the share ``uniform`` of the token's own mass.

        For tokens drawn from the law, this is uniform between 0 and 1, whatever the law (Rosenblatt 1952).
        """
        at = self._at.get(token)
        if at is None:
            return 1.0 - self.rest * (1.0 - uniform) if self.rest > NOTHING else 1.0
        return min(1.0, self._before[at] + uniform * self.probs[at])


def with_end(law: Law, ends: frozenset[Token]) -> Law:
    """Return the law with all tokens that end a text merged into END."""
    if not ends & set(law.tokens):
        return law
    probs = {t: p for t, p in zip(law.tokens, law.probs, strict=True) if t not in ends}
    probs[END] = sum(p for t, p in zip(law.tokens, law.probs, strict=True) if t in ends)
    ordered = sorted(probs.items(), key=lambda one: -one[1])
    return Law(tuple(t for t, _ in ordered), tuple(p for _, p in ordered), law.rest)


def law_of_row(logits: Tensor, sampling: Sampling) -> Law:
    """Return the law of one row of logits over the whole vocabulary."""
    row = probabilities(logits, sampling)
    best = row.topk(min(LISTED, row.shape[-1]))
    probs = [p for p in best.values.tolist() if p > 0]
    rest = max(0.0, 1.0 - math.fsum(probs)) if len(probs) == LISTED else 0.0
    return Law(tuple(best.indices.tolist()[: len(probs)]), tuple(probs), rest)


def law_of_likeliest(logprobs: Mapping[Token, float], sampling: Sampling) -> Law:
    """Return the law, given only the log-probabilities of the most likely tokens at temperature 1.

    Raise UserError if they do not determine it: at another temperature, the mass of the unlisted tokens is only
    bounded, by the weight of the least likely listed token.
    """
    if not logprobs:
        raise UserError("the server returns no log-probabilities: give reference=FOLDER_OR_URL")
    ordered = sorted(logprobs.items(), key=lambda one: -one[1])
    raw = [math.exp(value) for _, value in ordered]
    least, rest = raw[-1], max(0.0, 1.0 - math.fsum(raw))
    if rest < 1e-5:  # rounding of so many numbers
        rest = 0.0
    if sampling.greedy:
        return Law((ordered[0][0],), (1.0,))
    power = 1.0 / sampling.temperature
    weights = [p**power for p in raw]
    # an upper bound on the weight of the others: each is at most as likely as the last listed token
    tail = rest if power == 1.0 else rest * least ** (power - 1.0) if power > 1.0 else math.inf
    tail = 0.0 if rest == 0.0 else tail
    if 0 < sampling.top_k <= len(weights):
        weights, tail = weights[: sampling.top_k], 0.0
    elif sampling.top_k and tail:
        raise _open(sampling, len(ordered))
    total = math.fsum(weights) + tail
    unsure = 0.0 if power == 1.0 else tail / total
    probs = [w / total for w in weights]
    if sampling.top_p < 1.0:
        before = accumulate(probs, initial=0.0)
        kept = [p for p, mass in zip(probs, before, strict=False) if mass < sampling.top_p]
        if len(kept) == len(probs) and math.fsum(probs) < sampling.top_p:
            raise _open(sampling, len(ordered))
        probs, tail = kept, 0.0
    if sampling.min_p > 0.0:
        if tail and probs[-1] >= sampling.min_p * probs[0]:
            raise _open(sampling, len(ordered))
        probs = [p for p in probs if p >= sampling.min_p * probs[0]]
        tail = 0.0
    if not unsure <= UNSURE:
        raise _open(sampling, len(ordered))
    total = math.fsum(probs) + (tail / total if tail else 0.0)
    probs = [p / total for p in probs]
    rest = max(0.0, 1.0 - math.fsum(probs)) if tail else 0.0
    return Law(tuple(t for t, _ in ordered[: len(probs)]), tuple(probs), rest)


def _open(sampling: Sampling, listed: int) -> UserError:
    return UserError(
        f"the server's {listed} likeliest tokens do not determine its distribution at"
        f" temperature={sampling.temperature:g} top_p={sampling.top_p:g}"
        f" top_k={sampling.top_k} min_p={sampling.min_p:g}: give temperature=1 without"
        " top_p, top_k and min_p, or reference=FOLDER_OR_URL"
    )


Laws = Callable[[Sequence[Tokens]], Sequence[Law]]  # takes prefixes; the law after each


class Partition:
    """Cells of the outcomes after one prefix: a tree that follows the most likely tokens.

    A cell is a single outcome, or all outcomes that begin with the same tokens, or all outcomes that continue such a
    beginning with a token that has no cell of its own.
    """

    def __init__(self, laws: Laws, prefix: Tokens, length: int, most: int, least: float) -> None:
        """``most``: the approximate number of cells. ``least``: the smallest probability of a separate cell."""
        self.length = length
        least = max(least, 0.5 / most)
        self.probs: list[float] = []
        self._cells: dict[Tokens, int] = {}  # by outcome, or beginning of outcomes
        self._others: dict[Tokens, int] = {}  # by expanded node: the cell of all other tokens there
        frontier: list[tuple[float, Tokens]] = [(-1.0, ())]
        done = 0  # cells that are not split any further
        while frontier and done + len(frontier) < most and -frontier[0][0] > least:
            taken = [heapq.heappop(frontier) for _ in range(min(AHEAD, len(frontier)))]
            again = [one for one in taken if -one[0] <= least]
            nodes = [(-p, path) for p, path in taken if -p > least]
            for one in again:
                heapq.heappush(frontier, one)
            found = laws([(*prefix, *path) for _, path in nodes])
            for (mass, path), law in zip(nodes, found, strict=True):
                told = [
                    (t, p) for t, p in zip(law.tokens, law.probs, strict=True) if mass * p >= least
                ]
                self._others[path] = self._cell(mass * (1.0 - math.fsum(p for _, p in told)))
                done += 1
                for token, p in told:
                    way = (*path, token)
                    if len(way) == length or token == END:
                        self._cells[way] = self._cell(mass * p)
                        done += 1
                    else:
                        heapq.heappush(frontier, (-mass * p, way))
        for mass, path in frontier:
            self._cells[path] = self._cell(-mass)

    def _cell(self, mass: float) -> int:
        self.probs.append(mass if mass > NOTHING else 0.0)
        return len(self.probs) - 1

    def cell(self, outcome: Tokens) -> int:
        """Return the index of an outcome's cell."""
        for depth in range(len(outcome) + 1):
            path = outcome[:depth]
            if path in self._cells:
                return self._cells[path]
            if path not in self._others:
                return self._others[path[:-1]]
        return self._others[outcome]  # shorter than any cell; no caller counts such an outcome

    def depth(self) -> float:
        """Return how many of the next tokens the cells distinguish, on average over the law."""
        told = ((len(path), self.probs[at]) for path, at in self._cells.items())
        others = ((len(path) + 1, self.probs[at]) for path, at in self._others.items())
        return math.fsum(n * p for n, p in told) + math.fsum(n * p for n, p in others)

    def name(self, cell: int) -> tuple[Tokens, bool]:
        """Return the tokens that a cell's outcomes begin with, and True if it is the cell of all other tokens after them."""
        for path, at in self._cells.items():
            if at == cell:
                return path, False
        return next(path for path, at in self._others.items() if at == cell), True
