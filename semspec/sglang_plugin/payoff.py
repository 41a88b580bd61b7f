"""Whether it pays to have the target read the drafts of a batch, or only the last token of each text.

A pass over drafts has all the rows that drafts may have, for every request of the batch, and takes longer; a plain one writes one token
a request. Before each pass the drafts are there, and cost next to nothing: they are copies. They are read where

    (requests + tokens that the drafts are expected to bring) / seconds of a pass over drafts
        > requests / seconds of a plain pass

and dropped otherwise. Both times are measured, from one draft to the next with all that lies between; what a draft brings is counted, by
how good the drafter thinks it is and by what its request's last ones brought. A draft that was dropped is counted as well: by what was
written in its place. So a text that begins to repeat itself is drafted again, without a pass that is spent on trying. (A rule that keeps
more than the target's own choice would have kept more of it: such drafts are expected to bring too little, if anything.) Drafts that a model
would write first take their time before anything is known of them; they are tried again now and then, and the more seldom the more
often that was in vain.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

KEEP = 0.9  # of what was measured before, at each new pass
FADE = 0.8  # of what was counted before of a request, at each of its drafts
LEARN = 0.98  # likewise of all drafts of one grade
BELIEF = 2.0  # drafts of a request that count as much as all others of their grade
FIRST = 1.0  # token that a draft is expected to bring while nothing is known
TRIALS = 2  # passes of a kind that are measured before they are compared
AGAIN = 128  # where nothing else is said
RARELY = 8  # times as many passes, at most, after tries in vain
MOST = 4096  # requests that are remembered


@dataclass(slots=True)
class Mean:
    """A mean of what was seen, newer values counting more."""

    total: float = 0.0
    weight: float = 0.0
    seen: int = 0
    at: int = 0  # the number of the last pass that added to it
    vain: int = 0  # values since what it is the mean of was last chosen for being better

    def add(self, value: float, keep: float) -> None:
        self.total, self.weight = keep * self.total + value, keep * self.weight + 1
        self.seen += 1

    def value(self, belief: float = 0.0, otherwise: float = 0.0) -> float:
        """Return the mean, with ``belief`` values of ``otherwise`` among what was seen."""
        weight = self.weight + belief
        return (self.total + belief * otherwise) / weight if weight else otherwise


@dataclass(frozen=True, slots=True)
class Proposed:
    """A request's draft, before the target reads it."""

    request: Hashable
    path: (
        Sequence[int] | None
    )  # its first path; None: it is yet to be drafted, which takes time itself
    nodes: int
    grade: int


@dataclass(slots=True)
class Dropped:
    """A draft that was not read, as far as what was written agrees with it."""

    path: Sequence[int]
    grade: int
    agreed: int = 0


@dataclass
class Payoff:
    """What passes took and what drafts brought, in one worker."""

    again: int = AGAIN  # passes after which a kind that was not run is measured again
    seconds: dict[tuple[bool, int], Mean] = field(default_factory=dict)  # by kind and size of batch
    brought: dict[int, Mean] = field(default_factory=dict)  # tokens, by grade
    own: dict[Hashable, Mean] = field(default_factory=dict)  # tokens, by request
    passes: int = 0
    tries: bool = False  # whether the last choice was made in order to measure it
    _dropped: dict[Hashable, Dropped] = field(default_factory=dict)
    _read: dict[Hashable, int] = field(
        default_factory=dict
    )  # grades of the drafts of the last pass
    _last: tuple[bool, int, float, frozenset[Hashable]] | None = None  # kind, size, start, requests
    _more: int = 0  # passes like the last one, which nothing was decided about

    def interrupted(self) -> None:
        """Note that the time since the last draft says nothing of a pass: a prompt was read meanwhile."""
        self._last = None

    def skipped(self) -> None:
        """Note that a batch is drafted for without a decision: what it takes and brings is not counted."""
        self._last = None
        self._read.clear()

    def again_so(self) -> None:
        """Note that another pass of the same requests is like the last one, without a decision."""
        self.passes += 1
        self._more += 1

    def gained(self, request: Hashable, tokens: Sequence[int]) -> None:
        """Take the tokens that a request's text has gained since its last draft."""
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
        """Drop what was counted of a request that has ended."""
        for table in (self._dropped, self._read, self.own):
            table.pop(request, None)

    def expected(self, draft: Proposed) -> float:
        """Return how many tokens more than one a request gains if its draft is read."""
        all_of_it = self.brought.get(draft.grade, Mean()).value(1.0, FIRST)
        mean = self.own.get(draft.request, Mean()).value(BELIEF, all_of_it)
        return mean if draft.path is None else min(mean, float(len(draft.path)))

    def begin(self, requests: Sequence[Hashable], now: float) -> None:
        """Take note that a batch is drafted for: the last pass is over."""
        if self._last is not None:
            read, size, began, before = self._last
            if before == frozenset(requests):
                mean = self.seconds.setdefault((read, size), Mean())
                mean.add((now - began) / (1 + self._more), KEEP)
                mean.at = self.passes
                mean.vain += 1
        self._last = None

    def pays(self, drafts: Sequence[Proposed]) -> bool:
        """Return whether the target should read these drafts of one batch."""
        found, self.tries = [draft for draft in drafts if draft.nodes], False
        return bool(found) and self._better(found, len(drafts))

    def decided(self, drafts: Sequence[Proposed], read: bool, now: float) -> None:
        """Take note of what is done with these drafts, which were begun at ``now``."""
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
        wide, plain = (self.seconds.setdefault((kind, size), Mean()) for kind in (True, False))
        for mean, other, choice in ((wide, plain, True), (plain, wide, False)):
            if mean.seen < TRIALS:
                self.tries = True
                return choice
            # the more it costs, and the more often that was in vain, the less often
            dearer = max(1.0, mean.value() / max(other.value(), 1e-9))
            seldom = min(RARELY, 2 ** max(0, mean.vain - TRIALS))
            if self.passes - mean.at > self.again * dearer * seldom:
                self.tries = True
                return choice
        gain = sum(map(self.expected, found))
        pays = (requests + gain) * plain.value() > requests * wide.value()
        (wide if pays else plain).vain = 0
        return pays
