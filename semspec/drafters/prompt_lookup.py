"""Prompt lookup: copy what followed the last time that the text ended like this (Saxena 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.drafters._base import CopyingDrafter, DraftSessionBase
from semspec.drafters._ngrams import NGrams
from semspec.drafters._proposal import Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room


@register("drafter", "prompt_lookup")
@dataclass(frozen=True, kw_only=True)
class PromptLookup(CopyingDrafter):
    """Copies what followed the newest match of the last tokens, in the prompt or the output."""

    ngram: int = 3  # tokens to match; fewer, down to ``shortest``, if there is no such match
    shortest: int = 1
    longest: int = 10  # tokens in a draft; a step that was begun is copied to its end

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.ngram:
            raise UserError(
                f"shortest={self.shortest}, ngram={self.ngram}: shortest is 1 or more, and ngram not"
                " less than it"
            )
        if self.longest < 1:
            raise UserError(f"longest={self.longest}: a draft of no tokens is draft=none")

    def open(self, kit: Kit) -> PromptLookupSession:
        return PromptLookupSession(self, kit)


class PromptLookupSession(DraftSessionBase):
    def __init__(self, options: PromptLookup, kit: Kit) -> None:
        self.options, self.kit = options, kit
        self.ngrams = NGrams(options.ngram, options.shortest)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        tokens = context.tokens
        self.ngrams.learn(tokens)
        match = self.ngrams.find(tokens[-self.options.ngram :])
        proposal = Proposal(self.kit, room, found="lexical" if match else "none")
        if match is not None:
            proposal.grade = min(match.length, 9)
            proposal.copy(tokens, match.start, self.options.longest, rounds=True)
        return proposal.draft()
