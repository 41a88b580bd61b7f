"""PLD+: copy after the place, among all with the last token, whose hidden state is most similar."""

from __future__ import annotations

from dataclasses import dataclass

from semspec.drafters._anchors import Anchors
from semspec.drafters._base import CopyingDrafter
from semspec.drafters._memory import Memory, RememberingSession
from semspec.drafters._proposal import Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import Context, Draft, Room, What


@register("drafter", "pld_plus")
@dataclass(frozen=True, kw_only=True)
class PldPlus(CopyingDrafter):
    """Copies after the earlier occurrence of the last token with the most similar hidden state."""

    longest: int = 30  # tokens in a draft; a step that was begun is copied to its end
    layer: int = 0  # whose states are compared; 0: a third of the way up, -1: the last
    candidates: int = 128  # compare this many newest places
    width: int = 128  # of the sketch of a state that is kept; 0: keep states whole
    precision: str = "float32"

    needs = frozenset({What.HIDDEN})

    def __post_init__(self) -> None:
        if self.longest < 1 or self.candidates < 1 or self.width < 0:
            raise UserError(
                f"longest={self.longest}, candidates={self.candidates}, width={self.width}: the first"
                " two are at least 1, width 0 (whole) or more"
            )
        Memory(precision=self.precision)  # raises for an unknown number type

    def open(self, kit: Kit) -> PldPlusSession:
        return PldPlusSession(self, kit)


def chosen_layer(layer: int, kit: Kit) -> int:
    """Return the layer, or a third of the way up for 0.

    PLD+ takes layer 9 of 32, 13 of 40 and 11 of 60 (AdaPLD, table 6): about a third.
    """
    return layer or -(-kit.layers // 3)


class PldPlusSession(RememberingSession):
    def __init__(self, options: PldPlus, kit: Kit) -> None:
        layer = chosen_layer(options.layer, kit)
        super().__init__(Memory(layer, width=options.width, precision=options.precision))
        self.options, self.kit = options, kit
        self.anchors = Anchors()

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from self.memory.catch_up(context, self.kit)
        tokens, memory = context.tokens, self.memory
        self.anchors.learn(tokens)
        places = self.anchors.at(tokens[-1], self.options.candidates)
        proposal = Proposal(self.kit, room, found="lexical" if places else "none")
        if places:
            # the states before each place, and before the last token (AdaPLD, equations 6 and 7)
            (best,) = memory.closest(len(tokens) - 2, [places])
            proposal.grade = best.grade
            proposal.copy(tokens, best.place + 1, self.options.longest)
        return proposal.draft()
