"""LogitSpec: the target's last logits guess the next token, and lookups continue after each guess."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.drafters._base import CopyingDrafter
from semspec.drafters._memory import Memory, RememberingSession
from semspec.drafters._ngrams import Match, NGrams
from semspec.drafters._proposal import ROOT, Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room, What


@register("drafter", "logitspec")
@dataclass(frozen=True, kw_only=True)
class LogitSpec(CopyingDrafter):
    """Looks up the text's end, alone and with each guess from the target's last logits appended."""

    ngram: int = 3  # tokens to match; fewer if there is no such match
    longest: int = 20  # tokens that a lookup copies
    guesses: int = 16  # from the last logits: what was likely one token ago is likely now
    nodes: int = 64

    needs = frozenset({What.TOP_K})

    def __post_init__(self) -> None:
        if min(self.ngram, self.longest, self.guesses, self.nodes) < 1:
            raise UserError("ngram, longest, guesses and nodes of logitspec are each at least 1")

    def open(self, kit: Kit) -> LogitSpecSession:
        return LogitSpecSession(self, kit)


class LogitSpecSession(RememberingSession):
    def __init__(self, options: LogitSpec, kit: Kit) -> None:
        super().__init__(Memory(top_k=options.guesses + 1))
        self.options, self.kit = options, kit
        self.ngrams = NGrams(options.ngram)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from self.memory.catch_up(context, self.kit)
        options, tokens = self.options, context.tokens
        self.ngrams.learn(tokens)
        proposal = Proposal(self.kit, room, nodes=options.nodes)
        match = self.ngrams.find(tokens[-options.ngram :])
        if match is not None:
            proposal.grade = match.length
            proposal.copy(tokens, match.start, options.longest)
        guesses: list[tuple[int, Match]] = []  # nodes, and where the text went on after them
        for token in self._guesses(tokens):
            node = proposal.add(ROOT, token, "branch")
            tail = [*tokens[len(tokens) + 1 - options.ngram :], token]
            match = self.ngrams.find(tail)
            if node is not None and match is not None:
                guesses.append((node, match))
        for node, match in sorted(guesses, key=lambda guess: -guess[1].length):
            proposal.copy(tokens, match.start, options.longest, node, "successor")
        return proposal.draft()

    def _guesses(self, tokens: list[int]) -> list[int]:
        """Return other likely tokens of the row that the last token was drawn from: one often comes next."""
        if len(tokens) < 2:
            return []
        likely = self.memory.tops[len(tokens) - 2].tolist()
        return [token for token in likely if token != tokens[-1]][: self.options.guesses]
