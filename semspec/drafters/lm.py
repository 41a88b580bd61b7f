"""A small language model as the drafter: a chain of whole steps or of tokens, or a tree of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.drafters._trees import BestFirst, Fixed, Growth, Size
from semspec.errors import UserError
from semspec.models import ModelConfig
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.types import (
    Answer,
    Context,
    Draft,
    Generate,
    Query,
    Read,
    Role,
    Room,
    Sampling,
    What,
)

PROBS = Read(What.PROBS)
TREES = ("chain", "static", "dynamic", "sampled")


@register("drafter", "lm")
@dataclass(frozen=True, kw_only=True)
class LanguageModel(DrafterBase):
    """A small model samples the next steps (or tokens) with the target's own sampling."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/tiny-draft"))

    own_prompt: bool = True  # with marks of its own: reads its own chat template, not the target's

    tree: str = "chain"  # static: always one shape; dynamic: the likeliest nodes; sampled: drawn
    tree_depth: int = 6
    tree_top_k: int = 10  # children of a node at most
    tree_nodes: int = 32

    uses: ClassVar[frozenset[Role]] = frozenset({"draft"})
    ahead: ClassVar[bool] = True
    rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise UserError(f"tree={self.tree}: give {', '.join(TREES[:-1])} or {TREES[-1]}")
        Size(self.tree_depth, self.tree_top_k, self.tree_nodes)  # refuses what is no size

    @property
    def levels(self) -> int:
        """Levels of its trees at most; 0: it drafts chains, as long as ``draft_length`` says."""
        return 0 if self.tree == "chain" else self.tree_depth

    def open(self, kit: Kit) -> LanguageModelSession:
        return LanguageModelSession(kit) if self.tree == "chain" else TreeSession(kit, self)


class LanguageModelSession(DraftSessionBase):
    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        # a greedy draft is a point mass: nothing was sampled, so there is no q to read
        self.reads = tuple(
            read for read in kit.evidence if not (kit.sampling.greedy and read.what is What.PROBS)
        )

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        kit = self.kit
        answer: Answer = yield Query(
            "draft",
            context,
            kit.sampling,
            kit.rng,
            tokens=room.tail,
            reads=self.reads,
            generate=Generate(room.limit, kit.boundary(), room.units),
            purpose="draft",
        )
        return Draft(
            answer.tokens,
            answer.unit_ends(),
            probs=answer.values.get(Read(What.PROBS)),
            evidence=answer.values,
        )


class TreeSession(LanguageModelSession):
    """Grows a tree with one pass a level, and hands it over as point masses or as draws from q."""

    def __init__(self, kit: Kit, options: LanguageModel) -> None:
        super().__init__(kit)
        self.options = options
        self.greedy = kit.sampling.greedy
        # greedy rows are one-hot: a tree asks what else the model thinks of
        self.sampling = Sampling(1.0) if self.greedy else kit.sampling
        self.sampled = options.tree == "sampled" and not self.greedy

    def _seed(self, depth: int) -> Growth:
        size = Size(depth, self.options.tree_top_k, self.options.tree_nodes)
        if self.options.tree == "dynamic":
            return BestFirst(size, self.kit.stop_ids)
        return Fixed(size, self.kit.stop_ids, self.kit.rng if self.sampled else None)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        tree = self._seed(min(self.options.tree_depth, room.tokens, room.units))
        while tree.open:
            tokens, parents = tree.reading()
            answer: Answer = yield Query(
                "draft",
                context,
                self.sampling,
                self.kit.rng,
                tokens=tokens,
                parents=parents if tokens else None,
                reads=(PROBS,),
                # of the open nodes alone, so that only these go through the model
                rows_from=len(context) + len(tokens) - len(tree.open),
                purpose="draft",
            )
            tree.grow(answer[PROBS])
        return tree.draft(self.sampled, told=not self.greedy)
