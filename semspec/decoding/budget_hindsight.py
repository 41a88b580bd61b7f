"""Look back at a round: its predicted time and the fate of its draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from semspec.decoding.beliefs import Signal
from semspec.decoding.budget_prospects import DEEP, Proposal, Prospects
from semspec.decoding.economy import TRIES
from semspec.decoding.ledger import Ledger
from semspec.decoding.trim import depths, first_path, shared
from semspec.types import Round

REFRESH = 8  # rounds between lookups of prices
FAILED = 4.0  # most tokens by which one draft may disappoint: it failed in one place
LATE = 0.995  # weight of earlier kept and expected tokens, at each new token
# the texts of a crowd are alike, and often at the same place: what they show in a turn counts as at most so many events
EVENTS = 8.0
# share of what is known of a depth that is forgotten in a turn in which shorter drafts were kept whole
FORGOTTEN = 0.1


@dataclass(slots=True, kw_only=True, eq=False)
class Hindsight(Prospects):
    """Learns from the rounds of one problem."""

    # the rule is lossless: the target's own text shows what it would have kept
    exact: bool = False
    resting: bool = field(default=False, init=False)
    _asked: int = field(default=0, init=False)  # units asked for in this round
    _hope: float = field(default=0.0, init=False)  # expected kept tokens of this round's draft
    # tokens that a drafter which reads along has missed (None: no round is over), and this round's cost of reading them
    _unseen: int | None = field(default=None, init=False)
    _missed: float = field(default=0.0, init=False)
    _proposal: Proposal | None = field(default=None, init=False)
    _unread: int = field(default=0, init=False)  # tokens since the target last read a draft
    # the last round's draft saved time, without what waking its drafter took
    _won: bool = field(default=False, init=False)
    _failed: int = field(default=0, init=False)  # drafts in a row that did not
    # the target has read a draft of this problem
    _tried_here: bool = field(default=False, init=False)
    _ledger: Ledger = field(init=False)

    def over(self) -> None:
        self._ledger.over()

    def observe(self, done: Round) -> None:
        self._settle()
        gain = self._ledger.close(done, self._spent(done), bool(self._asked), self.resting)
        self._note(done, gain)
        self._miss(done, bool(self._asked))
        self._unread = 0 if done.drafted else self._unread + len(done.tokens)
        self._look_back(done)

    def _miss(self, done: Round, asked: bool) -> None:
        """Count what a drafter that reads along has missed after a round: the prompt too, if it rested in the first one."""
        if asked or not self.watches:
            self._unseen = 0
        elif self.resting or self._unseen:  # what comes after a gap is of no use to it
            self._unseen = self._gap + len(done.tokens)
        else:
            self._unseen = 0

    @property
    def _gap(self) -> int:
        """Tokens that the drafter will have missed after this round if it rests, besides those of the round itself."""
        return (self._context or 0) if self._unseen is None else self._unseen

    def _note(self, done: Round, gain: float) -> None:
        """Note whether the round's draft saved time, without what waking its drafter took."""
        self._won = bool(done.drafted) and gain + self._ledger.excess >= 0
        if done.drafted:
            self._tried_here = True
            self._failed = 0 if self._won else self._failed + 1

    def _spent(self, done: Round) -> float:
        """Return the predicted time of a round, in plain tokens."""
        economy, tokens = self.economy, done.tokens
        # each of the first drafts changes the known price
        if economy.tries < TRIES or self._ledger.rounds % REFRESH == REFRESH - 1:
            self._prices.clear()
        spent = self._missed
        if self._asked:
            spent += self._asking(self._asked, self.chain)
        if done.drafted:
            spent += self._price("read" if done.parents is None else "tree", 1 + len(done.drafted))
        else:
            spent += economy.writing(len(tokens), self.watches and not self.resting)
        return spent

    def _look_back(self, done: Round) -> None:
        """Learn from what was kept of a draft."""
        tokens = done.tokens
        # answers that begin together begin alike: their first drafts are one event, not many
        if self._ledger.crowded and self._ledger.rounds == 1:
            return
        fades = LATE ** len(tokens)
        self._kept, self._hoped = fades * self._kept, fades * self._hoped
        if done.drafted:
            self.economy.tried()
            kept = len(done.kept)
            self._kept += kept
            self._hoped += min(self._hope, kept + FAILED)
        if self._proposal is not None:
            self._learn(self._proposal, tokens)

    def _learn(self, proposal: Proposal, text: Sequence[int]) -> None:
        """Compare the proposal with the text that came, as far as that tells anything."""
        children = defaultdict[int, list[int]](list)
        for node, parent in enumerate(proposal.parents):
            children[parent].append(node)
        tried: list[tuple[Signal, bool]] = []
        at, length, reached = -1, 0, 0
        for token in text:
            followed = -1
            for node in children[at]:
                if proposal.sent is not None and node not in proposal.sent and not self.exact:
                    continue
                same = proposal.tokens[node] == token
                tried.append((proposal.signals[node], same))
                followed = node if same else followed
            if followed < 0:
                break
            at, length = followed, length + 1
            reached += not proposal.sent or followed in proposal.sent
        if not self.copies and self.cuts and not self.chain:
            # a tree also counts how deep it was right, along whichever path
            deepest = max(depths(proposal.parents))
            # only along nodes that were sent, since the cost of a tree is that of the nodes sent
            words = (("before", DEEP[d], self.heat) for d in range(min(reached + 1, deepest)))
            tried += [(signal, d < reached) for d, signal in enumerate(words)]
            if self.longest_chain and self.greedy:
                tried += self._first_path(proposal, text)
        elif not self.cuts and tried and proposal.parents != range(-1, len(proposal.tokens) - 1):
            # a level was right if any of its siblings was
            levels = {signal: False for signal, _ in tried}
            for signal, same in tried:
                levels[signal] |= same
            tried = list(levels.items())
        crowd = self.economy.company if self._ledger.crowded else 1
        self.economy.beliefs.learn(tried, weight=min(EVENTS / crowd, 1.0))
        whole = length == len(text) or not children[at]
        self.heat = "2" if length and whole else "1" if length else "0"
        if crowd > 1 and whole and not self.cuts and 0 < length < self.longest:
            self._doubt_limit(length, FORGOTTEN / crowd)

    def _doubt_limit(self, length: int, share: float) -> None:
        """Forget a share of what keeps drafts as short as one that was kept whole.

        Where the texts of a crowd have a hard place together, it counts as many. Drafts would stay short, and never show that
        the place is over.
        """
        last, longer = DEEP[length - 1], DEEP[length]
        if last != longer:
            self.economy.beliefs.doubt((self._word, longer, self.heat), share)

    def _first_path(self, proposal: Proposal, text: Sequence[int]) -> Iterator[tuple[Signal, bool]]:
        """Yield the fate that a chain would have had: the tree's first path."""
        path = [proposal.tokens[node] for node in first_path(proposal.parents)]
        right = shared(path, text)
        for depth in range(min(right + 1, len(path), len(text))):
            yield ("chain", DEEP[depth], self.heat), depth < right
