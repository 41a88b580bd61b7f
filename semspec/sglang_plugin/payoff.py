"""Decide whether the target should verify the drafts of a batch, or read only the last token of each text.

A verifying pass has the most rows that drafts may have, for every request of the batch, and takes longer; a plain pass writes
one token per request. Copied drafts are made before each pass and cost next to nothing. They are verified if

    (requests + tokens that the drafts are expected to bring) / seconds of a verifying pass
        > requests / seconds of a plain pass

and dropped otherwise. Both times are measured from one draft to the next, with everything in between. The tokens that a draft
brings are averaged by the drafter's grade for it and over its request's latest drafts. Dropped drafts count, too: they are
compared with what was written instead. So when a text begins to repeat itself, drafting resumes without spending a pass on a
trial. (A rule that keeps more than the target's own choice would have kept more of a dropped draft, so such drafts are if
anything underrated.) Drafts that a model would have to write first cost time before anything is known of them; they are tried
again now and then, less often the more often that was in vain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

KEPT = 16  # latest pass times of each kind that are remembered
PAUSE = 3.0  # a pass counts as at most so many median passes: a longer one was interrupted
FADE = 0.8  # weight of a request's older drafts at each new one
LEARN = 0.98  # weight of older drafts of a grade at each new one
BELIEF = 2.0  # the mean of a draft's grade counts as much as so many drafts of its request
FIRST = 1.0  # tokens that a draft is expected to bring while nothing is known
TRIALS = 3  # passes of each kind that are measured before they are compared
AGAIN = 128  # default of ``Payoff.again``
RARELY = 8  # after trials in vain, wait at most so many times as many passes
MOST = 4096  # requests that are remembered


@dataclass(slots=True)
class Mean:
    """A mean in which newer values count more."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, keep: float) -> None:
        self.total, self.weight = keep * self.total + value, keep * self.weight + 1

    def value(self, belief: float = 0.0, otherwise: float = 0.0) -> float:
        """Return the mean, as if ``belief`` values of ``otherwise`` had been seen as well."""
        weight = self.weight + belief
        return (self.total + belief * otherwise) / weight if weight else otherwise


@dataclass(slots=True)
class Times:
    """How long passes of one kind took lately; a pause of the machine is no cost of a pass."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    value: float = 0.0  # their mean, with every pass counted as at most ``PAUSE`` medians
    at: int = 0  # number of the last such pass
    vain: int = 0  # such passes since this kind was last chosen as the better one

    def add(self, seconds: float, at: int) -> None:
        self.latest.append(seconds)
        most = PAUSE * median(self.latest)
        self.value = fmean(min(one, most) for one in self.latest)
        self.at = at
        self.vain += 1


@dataclass(frozen=True, slots=True)
class Proposed:
    """A request's draft, before the target reads it."""

    request: Hashable
    # its path of first children; None: it is not drafted yet, and drafting takes time itself
    path: Sequence[int] | None
    nodes: int
    grade: int


@dataclass(slots=True)
class Dropped:
    """A draft that was not verified, and how many of its tokens the text has matched since."""

    path: Sequence[int]
    grade: int
    agreed: int = 0


@dataclass
class Payoff:
    """What passes cost and what drafts bring, in one worker."""

    again: int = AGAIN  # a kind of pass that was not run is measured again after so many passes
    # by kind and size of batch
    seconds: dict[tuple[bool, int], Times] = field(default_factory=dict)
    brought: dict[int, Mean] = field(default_factory=dict)  # tokens, by grade
    own: dict[Hashable, Mean] = field(default_factory=dict)  # tokens, by request
    passes: int = 0
    tries: bool = False  # whether the last choice was only made to measure it
    _dropped: dict[Hashable, Dropped] = field(default_factory=dict)
    _read: dict[Hashable, int] = field(default_factory=dict)  # grades of the last verified drafts
    _last: tuple[bool, int, float, frozenset[Hashable]] | None = None  # kind, size, start, requests
    _more: int = 0  # passes that repeated the last one without a decision

    def interrupted(self) -> None:
        """Do not time the current pass, because a prompt is read meanwhile."""
        self._last = None

    def skipped(self) -> None:
        """Do not count the next pass: its batch gets drafts without a decision."""
        self._last = None
        self._read.clear()

    def again_so(self) -> None:
        """Count one more pass with the same requests and the same choice, without a decision."""
        self.passes += 1
        self._more += 1

    def gained(self, request: Hashable, tokens: Sequence[int]) -> None:
        """Learn from the tokens that a request's text has gained since its last draft."""
        if (grade := self._read.pop(request, None)) is not None:
            self._count(request, grade, max(0, len(tokens) - 1))
        if (dropped := self._dropped.get(request)) is None:
            return
        for token in tokens:
            if dropped.agreed == len(dropped.path) or dropped.path[dropped.agreed] != token:
                break
            dropped.agreed += 1
        else:
            if dropped.agreed < len(dropped.path):
                return
        self._count(request, dropped.grade, dropped.agreed)
        del self._dropped[request]

    def _count(self, request: Hashable, grade: int, tokens: int) -> None:
        self.brought.setdefault(grade, Mean()).add(tokens, LEARN)
        self.own.setdefault(request, Mean()).add(tokens, FADE)
        while len(self.own) > MOST:
            del self.own[next(iter(self.own))]

    def forget(self, request: Hashable) -> None:
        """Drop what is known of a request that has ended."""
        for table in (self._dropped, self._read, self.own):
            table.pop(request, None)

    def expected(self, draft: Proposed) -> float:
        """Return how many tokens, besides the usual one, a request is expected to gain if its draft is verified."""
        all_of_it = self.brought.get(draft.grade, Mean()).value(1.0, FIRST)
        mean = self.own.get(draft.request, Mean()).value(BELIEF, all_of_it)
        return mean if draft.path is None else min(mean, float(len(draft.path)))

    def begin(self, requests: Sequence[Hashable], now: float) -> None:
        """Time the last pass: it is over, as a batch is being drafted for again."""
        if self._last is not None:
            read, size, began, before = self._last
            if before == frozenset(requests):
                times = self.seconds.setdefault((read, size), Times())
                times.add((now - began) / (1 + self._more), self.passes)
        self._last = None

    def pays(self, drafts: Sequence[Proposed]) -> bool:
        """Return whether the target should verify these drafts of one batch."""
        found, self.tries = [draft for draft in drafts if draft.nodes], False
        return bool(found) and self._better(found, len(drafts))

    def decided(self, drafts: Sequence[Proposed], read: bool, now: float) -> None:
        """Record whether these drafts, begun at ``now``, are verified."""
        self.passes += 1
        size = len(drafts).bit_length()
        self._last = read, size, now, frozenset(draft.request for draft in drafts)
        self._more = 0
        for draft in drafts:
            if not draft.nodes:
                continue
            if read:
                self._read[draft.request] = draft.grade
                self._dropped.pop(draft.request, None)
            elif draft.path is not None and draft.request not in self._dropped:
                self._dropped[draft.request] = Dropped(draft.path, draft.grade)

    def _better(self, found: Sequence[Proposed], requests: int) -> bool:
        size = requests.bit_length()
        wide, plain = (self.seconds.setdefault((kind, size), Times()) for kind in (True, False))
        for times, other, choice in ((wide, plain, True), (plain, wide, False)):
            if len(times.latest) < TRIALS:
                self.tries = True
                return choice
            # a dear kind, or one often tried in vain, is tried less often
            dearer = max(1.0, times.value / max(other.value, 1e-9))
            seldom = min(RARELY, 2 ** max(0, times.vain - TRIALS))
            if self.passes - times.at > self.again * dearer * seldom:
                self.tries = True
                return choice
        gain = sum(map(self.expected, found))
        pays = (requests + gain) * plain.value > requests * wide.value
        (wide if pays else plain).vain = 0
        return pays
