"""Medusa: heads on the target's last hidden state guess several tokens at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts.medusa_head import MedusaHead
from semspec.decoding.sampling import probabilities
from semspec.deferred import Tensor, torch
from semspec.drafters._base import rows_of
from semspec.drafters._heads import HeadSession, head_sources
from semspec.drafters._trees import TreeOptions
from semspec.heads.medusa import Medusa
from semspec.models.location import ModelConfig
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import LAST_STATES, Context, Draft, Room, Sampling, Seen, What


@register("drafter", "medusa")
@dataclass(frozen=True, kw_only=True)
class MedusaDrafter(TreeOptions):
    """Medusa: heads on the target's last hidden state, each predicting one token further ahead."""

    head: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/medusa-tiny"))

    tree: str = "static"  # as in lm; chain: of ``draft_length`` tokens
    tree_nodes: int = 63

    needs: ClassVar[frozenset[What]] = frozenset({What.HIDDEN})
    rows: ClassVar[bool] = True

    heads: ClassVar[Medusa | None] = None  # set by ``bind``

    def loads(self, run: Run) -> Sequence[Source]:
        return head_sources(self.head)

    def bind(self, run: Run) -> Self:
        target, weights = run.folders["target"], partial(run.weights, "target")
        return self.bound(heads=Medusa.load(self.head.fetch(), target, weights))

    @property
    def levels(self) -> int:
        heads = self.heads.shape.heads if self.heads is not None else super().levels
        return min(super().levels, heads)

    def open(self, kit: Kit) -> MedusaSession:
        assert self.heads is not None, "bind() comes first"
        return MedusaSession(kit, self, self.heads)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        MedusaHead.example().save(folder / "head")
        head = ModelConfig(path=str(folder / "head"))
        yield from (cls(head=head), cls(head=head, tree="chain"))


class MedusaSession(HeadSession):
    """Keeps the states that it saw last, which include that of the last token but one."""

    watches = (LAST_STATES,)
    recalls = False  # it drafts from the newest state

    def __init__(self, kit: Kit, options: TreeOptions, heads: Medusa) -> None:
        super().__init__(kit, options)
        self.heads = heads
        self.longest = heads.shape.heads
        self.seen = Seen(0, 0, {})
        self.logits = torch.empty(0, 0)  # [heads, vocabulary]
        self.depth: list[int] = []  # of the nodes of a draft

    def see(self, seen: Seen) -> None:
        self.seen = seen

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        at = len(context) - 2  # the heads of this state guess what follows the last token
        if at < 0:
            return Draft()
        if not self.seen.start <= at < self.seen.start + self.seen.count:
            self.seen = yield from rows_of(context, self.kit, self.watches, at)
        state = self.seen.values[LAST_STATES][at - self.seen.start]
        with torch.inference_mode():
            self.heads = self.heads.on(state.device)
            self.logits, self.depth = self.heads.logits(state)[:, 0], []
            return self.drafted(room)

    def rows(self, tokens: Sequence[int], parents: Sequence[int], sampling: Sampling) -> Tensor:
        """Return the same row for all nodes of a level: a head does not see what the others guessed."""
        for parent in parents:
            self.depth.append(1 if parent < 0 else self.depth[parent] + 1)
        level = self.depth[-1] if tokens else 0
        row = probabilities(self.logits[level : level + 1], sampling)
        return row.expand(max(len(tokens), 1), -1)
