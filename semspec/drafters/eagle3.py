"""EAGLE-3: a head on the target's features drafts, without an extra pass of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.decoding.sampling import probabilities
from semspec.deferred import Tensor, torch
from semspec.drafters._base import rows_of
from semspec.drafters._heads import HeadSession, head_sources
from semspec.drafters._trees import TreeOptions
from semspec.heads.eagle3 import Eagle3
from semspec.heads.eagle3_pairs import PairsBase
from semspec.heads.eagle3_step import pairs_of
from semspec.models.location import ModelConfig
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import Context, Draft, Read, Room, Sampling, Seen, What


@register("drafter", "eagle3")
@dataclass(frozen=True, kw_only=True)
class Eagle3Drafter(TreeOptions):
    """EAGLE-3: one decoder layer on low, middle and high features of the target."""

    head: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/eagle3-tiny"))

    tree: str = "dynamic"  # as in lm; chain: of ``draft_length`` tokens

    needs: ClassVar[frozenset[What]] = frozenset({What.HIDDEN})
    rows: ClassVar[bool] = True

    net: ClassVar[Eagle3]  # set by ``bind``

    def loads(self, run: Run) -> Sequence[Source]:
        return head_sources(self.head)

    def bind(self, run: Run) -> Self:
        target, weights = run.folders["target"], partial(run.weights, "target")
        return self.bound(net=Eagle3.load(self.head.fetch(), target, weights))

    def open(self, kit: Kit) -> Eagle3Session:
        return Eagle3Session(kit, self, self.net)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        Eagle3Head.example().save(folder / "head")
        head = ModelConfig(path=str(folder / "head"))
        yield cls(head=head)
        for tree in ("chain", "sampled"):
            yield cls(head=head, tree=tree, tree_depth=3, tree_top_k=3, tree_nodes=9)


class Eagle3Session(HeadSession):
    """Follows the context with the target's features, then drafts with the head's own output."""

    def __init__(self, kit: Kit, options: TreeOptions, head: Eagle3) -> None:
        super().__init__(kit, options)
        self.head = head
        self.names = head.names
        self.watches = (Read(What.HIDDEN, layers=head.shape.layers),)
        self.known = 0  # positions whose features were seen
        self.pending: list[Tensor] = []  # [n, 3, width] features that are not in pairs yet
        self.pairs: PairsBase | None = None  # set when the device of the target's states is known

    def see(self, seen: Seen) -> None:
        new = seen.start + seen.count - self.known
        if new > 0 and seen.start <= self.known:  # after a gap, ``draft`` asks for the rows
            self.pending.append(seen.values[self.watches[0]][seen.count - new : seen.count])
            self.known += new

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        pairs = len(context) - 1
        if pairs < 1:
            return Draft()
        if self.known < pairs:  # the prompt, once; and text that was written without a pass over it
            self.see((yield from rows_of(context, self.kit, self.watches, self.known)))
        with torch.inference_mode():
            self._follow(context.tokens)
            return self.drafted(room)

    def _follow(self, tokens: list[int]) -> None:
        """Add the context's new pairs to the cache."""
        features = torch.cat(self.pending)
        if self.pairs is None:
            self.head = self.head.on(features.device)
            self.pairs = pairs_of(self.head)
        new = tokens[self.pairs.context + 1 :]
        self.pending = [features[len(new) :]]
        self.pairs.follow(new, features[: len(new)].flatten(1))

    def rows(self, tokens: Sequence[int], parents: Sequence[int], sampling: Sampling) -> Tensor:
        return probabilities(self._logits(tokens, parents), sampling)

    def likeliest(self, tokens: Sequence[int], parents: Sequence[int]) -> int:
        return self.head.token(int(self._logits(tokens, parents).argmax()))

    def whole(self, rows: Tensor) -> Tensor:
        return self.head.over_vocabulary(rows)

    def _logits(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Return raw logits [n, draft vocabulary]; arguments as for ``rows``."""
        assert self.pairs is not None, "it has followed the context"
        return self.pairs.nodes(tokens, parents) if tokens else self.pairs.logits()
