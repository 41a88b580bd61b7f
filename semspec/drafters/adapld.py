"""AdaPLD: reuse the context by token or by meaning: copy, branch, and verify as a tree.

The letters (a) to (g) mark the parts of the method, one option each, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.drafters._anchors import NOWHERE, Anchors, Neighbours
from semspec.drafters._base import DrafterBase
from semspec.drafters._memory import Memory, Positions, RememberingSession
from semspec.drafters._proposal import ROOT, Proposal
from semspec.drafters.pld_plus import chosen_layer
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room, What


@register("drafter", "adapld")
@dataclass(frozen=True, kw_only=True)
class AdaPld(DrafterBase):
    """Drafts what followed the last token, or a similar one, earlier: a copy and branches."""

    lexical: bool = True  # (a) places with the same token
    semantic: bool = True  # (b) where there are none: places with a token of similar embedding
    ranked: bool = True  # (c) the place with the most similar state before it; else the newest
    longest: int = 30  # (d) tokens copied after the place, if it has the same token; 0: none
    branch: int = 8  # (e) the target's own likeliest tokens there; 0: none
    successor: bool = True  # (f) one more token after each branch, looked up the same way
    tree: bool = True  # (g) all of it if the rule walks trees; else only the best path
    threshold: float = 0.4  # least cosine of similar embeddings
    layer: int = 0  # whose states are compared; 0: a third of the way up, -1: the last
    candidates: int = 128  # compare this many newest places of the last token
    successor_candidates: int = 16  # the same for a branch, which gains at most one token
    width: int = 128  # of the sketch of a state that is kept; 0: keep states whole
    precision: str = "float32"

    def __post_init__(self) -> None:
        if not (self.lexical or self.semantic) or not (self.longest or self.branch):
            raise UserError(
                "adapld finds places with lexical or semantic=true, and drafts with longest or branch"
                " above 0: leave one of each on"
            )
        compared = min(self.candidates, self.successor_candidates)
        if min(self.longest, self.branch, self.width) < 0 or compared < 1:
            raise UserError(
                "longest, branch and width of adapld are 0 or more, the candidates 1 or more"
            )
        Memory(precision=self.precision)  # raises for an unknown number type

    @property
    def needs(self) -> frozenset[What]:
        """Return the reads: states rank places, likeliest tokens are branches, embeddings find similar tokens."""
        read = {What.HIDDEN: self.ranked, What.TOP_K: self.branch, What.EMBEDDINGS: self.semantic}
        return frozenset(what for what, wanted in read.items() if wanted)

    @property
    def reach(self) -> int:
        return max(self.longest, 1 + self.successor)

    def open(self, kit: Kit) -> AdaPldSession:
        return AdaPldSession(self, kit)


class AdaPldSession(RememberingSession):
    def __init__(self, options: AdaPld, kit: Kit) -> None:
        layer = chosen_layer(options.layer, kit) if options.ranked else None
        super().__init__(Memory(layer, options.branch, options.width, options.precision))
        self.options, self.kit = options, kit
        self.anchors = Anchors()
        self.neighbours = Neighbours(options.threshold, options.width)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        options, tokens, memory = self.options, context.tokens, self.memory
        yield from memory.catch_up(context, self.kit)
        self.anchors.learn(tokens)
        if options.semantic and not self.neighbours.filled:  # the prompt's tokens, all at once
            yield from self.neighbours.learn(context, self.kit, self.anchors.tokens)
        (places,), (found,) = yield from self._retrieve(context, tokens[-1:], options.candidates)
        proposal = Proposal(self.kit, room, found=found, tree=options.tree)
        if not places:
            return proposal.draft()
        last = len(tokens) - 1
        best = max(places)
        if options.ranked:  # equation 7
            (closest,) = memory.closest(last - 1, [places])
            best, proposal.grade = closest.place, closest.grade
        if found == "lexical" and options.longest:  # equation 9
            proposal.copy(tokens, best + 1, options.longest)
        branches = self._branches(best, proposal)
        if branches and options.successor:
            yield from self._succeed(context, branches, best, proposal)
        return proposal.draft()

    def _retrieve(
        self, context: Context, queries: Sequence[int], newest: int
    ) -> Plan[tuple[list[Positions], list[str]]]:
        """Return the places for each token, and how they were found: lexical first (equation 5)."""
        options = self.options
        at = self.anchors.at
        places = [at(token, newest) if options.lexical else NOWHERE for token in queries]
        found = ["lexical" if own else "none" for own in places]
        missed = [i for i, own in enumerate(places) if not own]
        known = self.anchors.tokens
        if not (missed and options.semantic and known):
            return places, found
        asked = [queries[i] for i in missed]
        neighbours = yield from self.neighbours.like(context, self.kit, asked, known)
        for i, alike in zip(missed, neighbours, strict=True):
            places[i] = self.anchors.of(alike, newest)
            if places[i]:
                found[i] = "semantic"
        return places, found

    def _best(self, places: Sequence[Positions], state: int) -> list[int]:
        """Return of each list the place whose preceding state is most like that at ``state``."""
        if not self.options.ranked:
            return [max(own) for own in places]
        open_ = [own for own in places if len(own) > 1]  # a single place needs no choice
        closest = iter(self.memory.closest(state, open_) if open_ else ())
        return [next(closest).place if len(own) > 1 else own[0] for own in places]

    def _branches(self, best: int, proposal: Proposal) -> list[int]:
        """Add nodes for the target's likeliest tokens at the place, except the copied one (equation 11)."""
        if not self.options.branch:
            return []
        copy = proposal.tokens[:1]
        tokens = [token for token in self.memory.tops[best].tolist() if token not in copy]
        nodes = [proposal.add(ROOT, token, "branch") for token in tokens]
        return [node for node in nodes if node is not None]

    def _succeed(
        self, context: Context, branches: Sequence[int], best: int, proposal: Proposal
    ) -> Plan[None]:
        """Extend each branch by the token that followed its own best place (equations 13 to 15)."""
        queries = [proposal.tokens[node] for node in branches]
        places, _ = yield from self._retrieve(context, queries, self.options.successor_candidates)
        hits = [(node, own) for node, own in zip(branches, places, strict=True) if own]
        chosen = self._best([own for _, own in hits], best)
        for (node, _), place in zip(hits, chosen, strict=True):
            proposal.add(node, context.tokens[place + 1], "successor")
