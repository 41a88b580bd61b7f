"""The cost model of the engines: seconds per query by its size, measured during the run.

Nothing here reads a clock. The driver reports the seconds of each query (``Costs.took``), the loop those of
each draft (``Costs.add``), and decisions follow these curves. A recorded table (``Costs.of``, ``fixed``)
answers the same questions without measuring.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

from semspec.decoding.context_price import ContextPrice, checked
from semspec.decoding.drift import Drift
from semspec.types import Answer, Query, Role

READ, TREE, WRITE, WATCH = "read", "tree", "write", "watch"
ASK, CHAIN = "ask", "chain"
"""Kinds of queries and their sizes. READ: tokens fed in a pass. TREE: the same for a tree. WRITE: tokens written.
WATCH: tokens written while a drafter watches. ASK: units asked of a drafter, including the models it asks. CHAIN: the
same where a tree drafter is asked for a chain."""

LEANS = {
    READ: (WRITE,),
    TREE: (READ, WRITE),
    WRITE: (READ,),
    WATCH: (WRITE, READ),
    ASK: (WRITE,),
    CHAIN: (ASK, WRITE),
}
"""For each kind, other kinds whose cost per context token is used while its own is unknown."""
PASSES = READ, TREE  # tokens are fed together; in all other kinds one after the other
DRAFTS = ASK, CHAIN  # the drafter's work, with the queries in it

FEW = 5  # up to so many measurements of a size, their median counts
KNOWN = 3  # measurements of a size with which others are compared
EVEN = 1.5  # times the average size that the largest in a pass may have if the pass is to tell about others
MEMORY = 64  # measurements in a size's average; beyond that, older ones fade
OUTLIER = 3.0  # a pass counts as at most this many times its expected seconds
# a token of a row costs at least this share of the row's seconds per token, whatever the start costs
LEAST_SHARE = 0.25
REFIT = 16  # measurements between fits of the price of the context
STEP = 64  # positions per step of context length: one price for each step
LEAST_LEFT = 0.25  # least share of a size's seconds that remains at a much shorter context
PREFIX = 8  # most tokens fed before the first written one; with more, a prompt was read
PAIRED = 4  # least tokens of two rows, one watched and one not, that tell what watching costs
PAIRS = 3  # least number of such pairs; the newest ``MEMORY`` of them count


@dataclass(slots=True)
class Point:
    """Measurements of about one size: the median of the first few, then a running average."""

    size: float
    seconds: float
    context: float  # average cached positions
    count: float = 1.0
    own: float = 0.0  # average seconds that the plans then spent on the answers
    first: list[float] = field(default_factory=list)  # the seconds of the first few

    def add(self, size: float, seconds: float, context: float, own: float = 0.0) -> None:
        self.first = self.first or [self.seconds]
        self.count = min(self.count + 1, MEMORY)
        self.size += (size - self.size) / self.count
        if self.count <= FEW:  # the median: one interrupted pass must not count
            self.first.append(seconds)
            self.seconds = median(self.first)
        else:
            self.seconds += (seconds - self.seconds) / self.count
        self.context += (context - self.context) / self.count
        self.own += (own - self.own) / self.count


def bin_of(size: float) -> int:
    """Return the index of a size's range; two ranges per power of two."""
    return int(2 * math.log2(max(size, 1)) + 1e-9)


Line: TypeAlias = tuple[list[float], list[float]]
"""Ascending sizes and the seconds of each."""


class Curve:
    """Seconds by size: a monotone line through averages, raised by the context once its price is known.

    Without a given context, each size is priced at the context it was measured at. Where several problems share the passes, a
    ``drift`` takes the place of the context, and the averages are those of a drift of 1.
    """

    def __init__(self, drift: Drift | None = None, reads: bool = False) -> None:
        self.drift = drift
        self.reads = reads  # passes that read drafts: the drift tells them from written rows
        self.points: dict[int, Point] = {}
        self.version = 0  # number of measurements
        self.price = ContextPrice()
        self._lines: dict[int | None, Line] = {}  # by step of the context

    def follow(self, size: float, seconds: float, passes: float) -> None:
        """Let the drift follow ``passes`` in a row that took so long, before they are added."""
        point = self.points.get(bin_of(size))
        if self.drift is not None and point is not None and point.count >= KNOWN:
            now = self.drift.of(self.reads)
            expected = self.at(size) * now * point.seconds / self._now(point)  # without own work
            self.drift.follow(now * seconds / expected, passes, self.reads)

    def add(self, size: float, seconds: float, context: float = 0, own: float = 0.0) -> None:
        """Add a measurement; ``own`` as in ``Costs.took``."""
        point = self.points.get(bin_of(size))
        if self.drift is None:
            seconds, own = seconds + own, 0.0
        else:
            seconds /= self.drift.of(self.reads)
        if point is None:
            self.points[bin_of(size)] = Point(size, seconds, context, own=own)
            self.points = dict(sorted(self.points.items()))  # by size: ranges do not overlap
        else:
            if point.count >= KNOWN:
                seconds = min(seconds, OUTLIER * point.seconds)
            if point.count >= FEW and self.drift is None:
                self.price.add(
                    size,
                    point.seconds,
                    longer=size - point.size,
                    farther=context - point.context,
                    slower=seconds - point.seconds,
                    weight=point.count / (point.count + 1),
                )
            point.add(size, seconds, context, own)
        self.version += 1
        self._lines.clear()

    def moved(self) -> None:
        """Note that the drift has changed."""
        self._lines.clear()

    def fit(self) -> None:
        """Fit the price of the context."""
        weight = sum(point.count for point in self.points.values())
        size = sum(point.count * point.size for point in self.points.values()) / weight
        self.price.fit(growing=self.each() * size / self.at(size))

    def lean(self, fetched: float, computed: float) -> None:
        """Use a related kind's price of the context where this curve's own is not certain."""
        self.price.lean(fetched, computed)
        self._lines.clear()

    def at(self, size: float, context: float | None = None) -> float:
        """Return the seconds of a size at a context length; None: at the one it was measured at."""
        sizes, seconds = line = self._line(context)
        i = min(max(bisect_right(sizes, size), 1), len(sizes) - 1)
        if len(sizes) == 1 or size <= sizes[0]:
            return seconds[0]
        if size > sizes[-1]:  # extrapolate with the average slope
            return seconds[-1] + (size - sizes[-1]) * max(_steepness(line), 0.0)
        share = (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])

    def each(self, context: float | None = None) -> float:
        """Return the average seconds per unit of size, over the range measured."""
        return _steepness(self._line(context))

    @property
    def least(self) -> float:
        """The smallest size measured."""
        return next(iter(self.points.values())).size

    @property
    def most(self) -> float:
        """The largest size measured."""
        return next(reversed(self.points.values())).size

    def _step(self, context: float | None) -> int | None:
        """Return the step of a context length; None: the context makes no difference."""
        if context is None or not (self.price.fetched or self.price.computed):
            return None
        return int(context) // STEP

    def _line(self, context: float | None) -> Line:
        step = self._step(context)
        line = self._lines.get(step)
        if line is None:
            line = self._lines[step] = self._drawn(step)
        return line

    def _drawn(self, step: int | None) -> Line:
        """Build the line; average neighbours of which the larger took less time."""
        sizes: list[float] = []
        seconds: list[float] = []
        weights: list[float] = []
        for point in self.points.values():
            size, weight = point.size, point.count
            took = self._now(point) if step is None else self._behind(point, step)
            while seconds and seconds[-1] > took:
                other, high, more = sizes.pop(), seconds.pop(), weights.pop()
                whole = weight + more
                size = (size * weight + other * more) / whole
                took, weight = (took * weight + high * more) / whole, whole
            sizes.append(size)
            seconds.append(took)
            weights.append(weight)
        return sizes, seconds

    def _behind(self, point: Point, step: int) -> float:
        """Return the seconds of a size at the middle of a context step."""
        farther = (step + 0.5) * STEP - point.context
        return max(point.seconds + farther * self.price.of(point.size), LEAST_LEFT * point.seconds)

    def _now(self, point: Point) -> float:
        """Return the seconds of a size at the present drift."""
        return point.own + point.seconds * (self.drift.of(self.reads) if self.drift else 1.0)

    def told(self) -> dict[str, Any]:
        """Return the curve as JSON."""
        points = [
            [round(p.size, 3), self._now(p), round(p.context, 1), p.count]
            for _, p in sorted(self.points.items())
        ]
        return {"points": points, "position": [self.price.fetched, self.price.computed]}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Curve:
        """Rebuild a curve from ``told``; raise ValueError, KeyError or TypeError if it is none."""
        curve = cls()
        for point in told["points"]:
            size, seconds, context, count = map(float, point)
            if not (0 <= size < math.inf and 0 < seconds < math.inf and count >= 1):
                raise ValueError(f"no measurement: {point}")
            curve.points[bin_of(size)] = Point(size, seconds, context, count)
        curve.points = dict(sorted(curve.points.items()))
        if not curve.points:
            raise ValueError("a curve without measurements")
        # older tables, from before the context was priced, have none
        fetched, computed = map(float, told.get("position", (0.0, 0.0)))
        curve.price = checked(fetched, computed)
        return curve


def _steepness(line: Line) -> float:
    sizes, seconds = line
    if len(sizes) == 1:
        return seconds[0] / sizes[0]
    return (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])


def company(load: int, most: int) -> int:
    """Round a load to a power of two, at most ``most``, so that each is measured often enough."""
    return min(1 << round(math.log2(max(load, 1))), most)


def nearest(loads: Iterable[int], load: int) -> int:
    """Return the one of these loads that is nearest by ratio."""
    return min(loads, key=lambda n: abs(math.log(n / load)))


def companies(most: int, every: bool) -> list[int]:
    """Return the loads with costs of their own: 1 and ``most``, or with ``every`` all between them too."""
    return sorted({company(n, most) for n in range(1, most + 1)} if every else {1, most})


@dataclass
class Costs:
    """Costs of queries, by who is asked, the kind, and how many problems share a pass."""

    fixed: bool = False  # recorded: nothing is added
    # running problems, where they come and go and decisions follow them; 0: the number is constant
    load: int = 0
    remote: bool = False  # servers answer: each query has a price of its own, besides its tokens
    curves: dict[tuple[str, str, int], Curve] = field(default_factory=dict)
    drafting: float = 0.0  # seconds that drafters have spent since ``resumed`` was last called
    clock: float | None = None  # time of the last answer, by the driver's clock
    wakings: int = 0  # times that a draft model read a long unseen text while all others waited
    # by model and load, where several problems share a pass
    drifts: dict[tuple[str, int], Drift] = field(default_factory=dict)
    # by load: seconds of rows that a drafter watched over those of equal rows just before or after them
    watching: dict[int, list[float]] = field(default_factory=dict)
    # the last row: kind, load, size, seconds
    _row: tuple[str, int, int, float] = field(default=("", 0, 0, 0.0), init=False)
    # seconds of a plain token by load and step of the context, since the last measurement
    _tokens: dict[tuple[int, int | None], float | None] = field(default_factory=dict, init=False)

    def add(
        self,
        who: str,
        kind: str,
        together: int,
        size: float,
        seconds: float,
        context: float = 0,
        own: float = 0.0,
    ) -> None:
        """Add a measurement, unless the table is recorded; ``own`` as in ``took``."""
        if self.fixed or seconds <= 0:
            return
        self._tokens.clear()
        if (curve := self.curve(who, kind, together)) is None:
            drifts = together > 1 and kind not in DRAFTS
            drift = self.drifts.setdefault((who, together), Drift()) if drifts else None
            curve = self.curves[who, kind, together] = Curve(drift, kind in PASSES)
        curve.add(size, seconds, context, own)
        if together == 1 and curve.version % REFIT == 0:
            curve.fit()
            self._lean(who, together)

    def follow(
        self, who: str, kind: str, together: int, size: float, seconds: float, passes: float
    ) -> None:
        """Let a model's drift under a load follow ``passes`` in a row that took so long, before they are added."""
        curve = self.curve(who, kind, together)
        if self.fixed or curve is None or curve.drift is None:
            return
        curve.follow(size, seconds, passes)
        self._tokens.clear()
        for kind in LEANS:
            if (other := self.curve(who, kind, together)) is not None:
                other.moved()

    def _lean(self, who: str, together: int) -> None:
        """Let related kinds stand in for each other's price of the context."""
        for kind, relatives in LEANS.items():
            if (curve := self.curve(who, kind, together)) is None:
                continue
            prices = 0.0, 0.0
            for relative in relatives:
                near = self.curve(who, relative, together)
                if near is not None and near.price.sure:
                    prices, lone = near.price.own, sum(near.price.own)
                    # a row of written tokens is many passes over one token each
                    if (kind in PASSES) != (relative in PASSES):
                        prices = (lone, 0.0) if kind in PASSES else (0.0, lone)
                    break
            curve.lean(*prices)

    def passed(self, asked: Sequence[tuple[Query, Answer]], seconds: float, together: int) -> None:
        """Note how long queries to one model took that were answered together, before plans go on with the answers."""
        if self.fixed or together == 1 or seconds <= 0 or (batch := _batch(asked)) is None:
            return
        kind, size, average = batch
        # a pass takes long for another reason if it also reads prompts, and its size says little if it is that of a few
        if size <= EVEN * average and (kind not in PASSES or all(map(_short, asked))):
            passes = len(asked) / together * (1 if kind in PASSES else size)
            self.follow(asked[0][0].model, kind, together, size, seconds, passes)

    def took(
        self, asked: Sequence[tuple[Query, Answer]], seconds: float, own: float, together: int
    ) -> None:
        """Add queries to one model that were answered together, in ``seconds`` for all.

        ``own``: seconds the plans spent on the answers until their next queries; they count as part of the
        target's cost.
        """
        if self.fixed:
            return
        role: Role = asked[0][0].model
        self.wakings += role == "draft" and not all(size_of(*one) for one in asked)
        if (batch := _batch(asked)) is None:
            return
        kind, size, average = batch
        context = sum(_positions(query, average) for query, _ in asked) / len(asked)
        own = own if role == "target" else 0.0
        if role == "target" and seconds > 0:
            self._pair(kind, together, size, seconds + own)
        self.add(role, kind, together, size, seconds, context, own)

    def _pair(self, kind: str, together: int, size: int, seconds: float) -> None:
        """Compare a row that a drafter watched with an equal one just before or after it.

        Watching costs a few hundredths of a token here. Two curves that are measured at different times differ by more on a
        machine that others use, too.
        """
        before, *alike, first = self._row
        self._row = kind, together, size, seconds
        if {before, kind} == {WRITE, WATCH} and alike == [together, size] and size >= PAIRED:
            share = seconds / first if kind == WATCH else first / seconds
            shares = self.watching.setdefault(together, [])
            shares.append(share)
            del shares[:-MEMORY]

    def _watched(self, together: int) -> float:
        """Return the seconds of a watched row over those of one that is not; 0 if too few pairs of them were measured."""
        if self.fixed or not self.watching:
            return 0.0
        ratios = self.watching[nearest(self.watching, together)]
        return max(median(ratios), 1.0) if len(ratios) >= PAIRS else 0.0

    def drift(self, load: int) -> float:
        """Return how many times as long the target's passes take now under a load as when they were measured."""
        drift = self.drifts.get(("target", load))
        return drift.factor if drift else 1.0

    def answered(self, now: float) -> None:
        """Note the time at which plans get their answers; a recorded table ignores it."""
        if not self.fixed:
            self.clock = now

    def drafted(self, seconds: float) -> None:
        """Note the seconds of a drafter's own work, which are not part of a query's cost."""
        self.drafting += seconds

    def resumed(self) -> float:
        """Return the seconds that drafters have spent since the last call, and reset them."""
        spent, self.drafting = self.drafting, 0.0
        return spent

    def curve(self, who: str, kind: str, together: int) -> Curve | None:
        """Return the curve measured for exactly this, if any."""
        return self.curves.get((who, kind, together))

    def seconds(
        self, who: str, kind: str, size: float, together: int = 1, context: float | None = None
    ) -> float | None:
        """Return the seconds of a query at a context length; where none was measured, those of the nearest kind or load."""
        if kind == WATCH and who == "target" and (share := self._watched(together)):
            written = self.seconds(who, WRITE, size, together, context)
            return None if written is None else share * written
        if (curve := self.curve(who, kind, together)) is not None:
            return _at(curve, kind, size, context)
        if kind == TREE:
            return self.seconds(who, READ, size, together, context)
        if kind == WATCH:
            return self.seconds(who, WRITE, size, together, context)
        others = [n for one, what, n in self.curves if (one, what) == (who, kind)]
        if not others:
            return None
        fewer, more = [n for n in others if n < together], [n for n in others if n > together]
        if kind == WRITE and fewer and more:  # a line between the loads on both sides
            few, many = max(fewer), min(more)
            low, high = (_at(self.curves[who, kind, n], kind, size, context) for n in (few, many))
            return low + (together - few) / (many - few) * (high - low)
        other = nearest(others, together)
        curve = self.curves[who, kind, other]
        if kind == READ:  # compare equal numbers of tokens in all
            return curve.at(size * together / other, context)
        written = _at(curve, kind, size, context)
        if kind == WRITE and (reading := self.curve(who, READ, other)) is not None:
            return written * _grown(reading, together / other, context)
        return written

    def token(self, together: int = 1, context: float | None = None) -> float | None:
        """Return the seconds per token in a long row that the target writes."""
        if together > 1 and not self.fixed:  # there the drift takes the place of the context
            context = None
        key = together, None if context is None else int(context) // STEP
        if key not in self._tokens:  # many problems ask between two passes
            self._tokens[key] = self._token(together, context)
        return self._tokens[key]

    def _token(self, together: int, context: float | None) -> float | None:
        curve = self.curve("target", WRITE, together)
        if curve is not None and len(curve.points) > 1:
            # noise can make rows of different lengths look almost equally long
            least = LEAST_SHARE * curve.at(curve.most, context) / curve.most
            return max(curve.each(context), least)
        return self.seconds("target", WRITE, 1, together, context)

    def told(self) -> list[dict[str, Any]]:
        """Return the table as JSON."""
        return [
            {"who": who, "kind": kind, "together": together, **self._shown(kind, together, curve)}
            for (who, kind, together), curve in sorted(self.curves.items())
        ]

    def _shown(self, kind: str, together: int, curve: Curve) -> dict[str, Any]:
        """Return a curve as JSON; that of watched rows as decisions see it."""
        written, share = self.curve("target", WRITE, together), self._watched(together)
        if kind != WATCH or written is None or not share:
            return curve.told()
        told = written.told()
        told["points"] = [[size, share * took, *more] for size, took, *more in told["points"]]
        told["position"] = [share * price for price in told["position"]]
        return told

    @classmethod
    def of(cls, told: Sequence[Mapping[str, Any]], fixed: bool = True) -> Costs:
        """Rebuild a table from ``told``; raise the same errors as ``Curve.of``."""
        curves = {
            (str(one["who"]), str(one["kind"]), int(one["together"])): Curve.of(one) for one in told
        }
        return cls(fixed, curves=curves)


def kind_of(query: Query) -> str:
    """Return the kind of a query to a model."""
    if query.generate is not None:
        return WATCH if query.reads and query.model == "target" else WRITE
    return READ if query.parents is None else TREE


def size_of(query: Query, answer: Answer) -> int:
    """Return the size of a query; 0 if it says nothing about costs."""
    if not query.passes:
        return 0
    if query.generate is None:
        return answer.fed
    return len(answer.tokens) if answer.fed - len(answer.tokens) <= PREFIX else 0


def _batch(asked: Sequence[tuple[Query, Answer]]) -> tuple[str, int, float] | None:
    """Return the kind, the largest and the average size of queries answered together; None if they say nothing about costs."""
    kinds = {kind_of(query) for query, _ in asked}
    sizes = [size_of(query, answer) for query, answer in asked]
    if len(kinds) > 1 or not all(sizes):
        return None
    return kinds.pop(), max(sizes), sum(sizes) / len(sizes)


def _short(asked: tuple[Query, Answer]) -> bool:
    """Return whether a pass read hardly more than it was asked about: neither a prompt nor what a cache had lost."""
    query, answer = asked
    return answer.fed - len(query.tokens) <= PREFIX


def _at(curve: Curve, kind: str, size: float, context: float | None) -> float:
    """Return the seconds of a query. Where tokens come one after the other, they cost less the fewer they are, also below the sizes measured.

    A load's first row may be its only one: 16 tokens say what one costs.
    """
    seconds, least = curve.at(size, context), curve.least
    if kind in PASSES:
        return seconds
    if len(curve.points) == 1:
        return seconds * size / least
    if size >= least:
        return seconds
    return max(seconds - (least - size) * curve.each(context), seconds * size / least)


def _grown(reading: Curve, times: float, context: float | None) -> float:
    """Return how many times as long a pass over one token of each problem takes with so many times the problems."""
    one = reading.at(1, context)
    if times >= 1:
        return reading.at(times, context) / one
    each = (
        max(reading.at(2, context) - one, 0.0) / one
    )  # below one token nothing was measured: a line
    return max(1 - (1 - times) * each, times)


def _positions(query: Query, size: float) -> float:
    """Return the cached positions before what was fed; for written tokens, before the middle of the row."""
    return len(query.context) + (size / 2 if query.generate is not None else 0.0)
