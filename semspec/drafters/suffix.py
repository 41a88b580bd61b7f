"""The longest suffix of the text that was there before, by a suffix automaton (SAM decoding)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from semspec.drafters._automaton import SuffixAutomaton
from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.drafters._ngrams import Match
from semspec.drafters._proposal import ROOT, Proposal, copied
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room


@register("drafter", "suffix")
@dataclass(frozen=True, kw_only=True)
class Suffix(DrafterBase):
    """Copies what last followed the longest repeated end of the text, more after a longer match."""

    longest: int = 40  # tokens in a draft; a step that was begun is copied to its end
    stretch: float = 4.0  # tokens copied for each token that matched
    shortest: int = 1  # tokens that must match
    match: int = 64  # longer matches are cut to this

    def __post_init__(self) -> None:
        if self.longest < 1 or not 1 <= self.shortest <= self.match or self.stretch <= 0:
            raise UserError(
                f"longest={self.longest}, stretch={self.stretch:g}, shortest={self.shortest},"
                f" match={self.match}: give longest at least 1, stretch more than 0, and shortest"
                " from 1 to match"
            )

    @property
    def reach(self) -> int:
        """Tokens that it drafts at a time where tokens are the unit."""
        return self.longest

    def open(self, kit: Kit) -> SuffixSession:
        return SuffixSession(self, kit)


class SuffixSession(DraftSessionBase):
    def __init__(self, options: Suffix, kit: Kit) -> None:
        self.options, self.kit = options, kit
        self.automaton = SuffixAutomaton(options.match)

    def matched(self, context: Context) -> tuple[list[int], Match] | None:
        """A text and the place in it to copy from; a corpus would be asked beside the context."""
        self.automaton.extend(context.tokens[self.automaton.size :])
        match = self.automaton.match
        if match is None or match.length < self.options.shortest:
            return None
        return context.tokens, match

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        hit = self.matched(context)
        proposal = Proposal(self.kit, room, found="lexical" if hit else "none")
        if hit is not None:
            source, match = hit
            length = min(self.options.longest, ceil(match.length * self.options.stretch))
            proposal.grade = min(match.length, 9)
            proposal.extend(ROOT, copied(self.kit, room, source, match.start, length), "main")
        return proposal.draft()
