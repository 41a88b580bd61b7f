"""Copy after the longest suffix of the text that occurred before, by a suffix automaton (SAM decoding).

A datastore adds the longest suffix that occurs in a corpus. SAM decoding (Hu et al. 2024) takes the
context unless the corpus match is longer by a bias, and trusts no corpus match below a threshold. With
``remember``, answers to earlier questions take the context's place where they match more tokens, as in
SuffixDecoding (Oliaro et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.datastores.sparse import SparseStore
from semspec.datastores.trie import greediest
from semspec.drafters import _corpus
from semspec.drafters._automaton import SuffixAutomaton
from semspec.drafters._base import DraftSessionBase, MatchingDrafter
from semspec.drafters._ngrams import Match
from semspec.drafters._proposal import Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import Context, Draft, Room


@register("drafter", "suffix")
@dataclass(frozen=True, kw_only=True)
class Suffix(MatchingDrafter):
    """Copies what last followed the longest repeated end of the text; long matches copy more."""

    longest: int = 40  # tokens in a draft; a step that was begun is copied to its end
    stretch: float = 4.0  # tokens copied for each token that matched
    shortest: int = 1  # tokens that must match
    match: int = 64  # longer matches are cut to this
    datastore: str = ""  # a sparse datastore to search besides the context
    bias: int = 5  # a match in the corpus must exceed the context's by more tokens than this
    threshold: int = 5  # tokens that must match in the corpus
    places: int = 256  # most places of a corpus match to look at
    allow_mismatch: bool = False
    remember: int = 0  # MiB of answers to earlier questions to search, too; 0: none

    def __post_init__(self) -> None:
        self.check_match()
        if self.bias < 0 or not 1 <= self.threshold <= self.match or self.places < 1:
            raise UserError(
                f"bias={self.bias}, threshold={self.threshold}, places={self.places}: give bias 0 or"
                f" more, threshold from 1 to match={self.match}, places at least 1"
            )
        if self.remember < 0:
            raise UserError(f"remember={self.remember}: give a number of MiB, 0 for none")

    @property
    def remembers(self) -> int:
        return self.remember

    store: ClassVar[SparseStore | None] = None  # set by ``bind``, with a datastore

    def loads(self, run: Run) -> Sequence[Source]:
        return _corpus.sources(SparseDatastore, self.datastore, run) if self.datastore else ()

    def bind(self, run: Run) -> Self:
        if not self.datastore:
            return self
        given = self.datastore, run, self.allow_mismatch
        return self.bound(store=_corpus.opened(*given, "threshold", self.threshold))

    def open(self, kit: Kit) -> SuffixSession:
        if self.datastore and self.store is None:  # it was not bound to a run's models
            raise UserError(f"datastore={self.datastore}: suffix asks one in semspec.run alone")
        return SuffixSession(self, kit, self.store)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls()
        SparseDatastore.example().save(folder / "sparse")
        yield cls(datastore=str(folder / "sparse"), threshold=1, bias=0)


class SuffixSession(DraftSessionBase):
    def __init__(self, options: Suffix, kit: Kit, store: SparseStore | None = None) -> None:
        self.options, self.kit, self.store = options, kit, store
        self.automaton = SuffixAutomaton(options.match)

    def matched(self, context: Context, room: Room) -> tuple[Sequence[int], Match] | None:
        """Return a text (context, corpus or earlier answer) and the place in it to copy from."""
        options = self.options
        self.automaton.extend(context.tokens[self.automaton.size :])
        match = self.automaton.match
        length = 0 if match is None else match.length
        earlier = self._remembered(context, room, max(options.shortest, length + 1))
        length = earlier[1].length if earlier else length
        least = max(options.threshold, length + options.bias + 1 if length else 1)
        if self.store is not None and least <= options.match:
            stored = self.store.longest(context.tokens, options.match, least)
            if stored:
                rows = self.store.following(stored, max(room.limit, 1), options.places)
                return greediest(rows), Match(0, stored[0].length)
        if earlier:
            return earlier
        if match is None or length < options.shortest:
            return None
        return context.tokens, match

    def _remembered(
        self, context: Context, room: Room, least: int
    ) -> tuple[Sequence[int], Match] | None:
        """Return what followed in answers to earlier questions, if they match ``least`` tokens."""
        kit, options = self.kit, self.options
        if kit.earlier is None or not options.remember or least > options.match:
            return None
        tail = context.tokens[-options.match :]
        hit = kit.earlier.find(tail, options.match, least, min(room.limit, options.longest))
        return (greediest(hit[1]), Match(0, hit[0])) if hit else None

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        hit = self.matched(context, room)
        proposal = Proposal(self.kit, room, found="lexical" if hit else "none")
        if hit is not None:
            source, match = hit
            length = min(self.options.longest, ceil(match.length * self.options.stretch))
            proposal.grade = min(match.length, 9)
            proposal.copy(source, match.start, length, rounds=True)
        return proposal.draft()
