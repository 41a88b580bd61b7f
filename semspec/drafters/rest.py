"""REST: draft a tree of what most often followed the text's last tokens in a corpus (He et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.datastores.sparse import SparseStore
from semspec.datastores.trie import greediest, heaviest
from semspec.drafters import _corpus
from semspec.drafters._base import CopyingDrafter, DraftSessionBase
from semspec.drafters._proposal import ROOT, Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import Context, Draft, Room


@register("drafter", "rest")
@dataclass(frozen=True, kw_only=True)
class Rest(CopyingDrafter):
    """Finds the text's longest match in a corpus and drafts its most frequent continuations."""

    datastore: str = "embedded/sparse-tiny"
    span: int = 16  # tokens to match; fewer, down to ``shortest``, if there is no such match
    shortest: int = 2
    nodes: int = 64  # of the tree: the most frequent of the trie
    longest: int = 10  # levels of the tree; a step that was begun is copied to its end
    places: int = 256  # most places of a match to look at, evenly chosen if there are more
    allow_mismatch: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.span:
            raise UserError(
                f"shortest={self.shortest}, span={self.span}: shortest is 1 or more, and span not"
                " less than it"
            )
        if min(self.nodes, self.longest, self.places) < 1:
            given = f"nodes={self.nodes}, longest={self.longest}, places={self.places}"
            raise UserError(f"{given}: each is 1 or more")

    store: ClassVar[SparseStore]  # set by ``bind``

    def loads(self, run: Run) -> Sequence[Source]:
        return _corpus.sources(SparseDatastore, self.datastore, run)

    def bind(self, run: Run) -> Self:
        given = self.datastore, run, self.allow_mismatch
        return self.bound(store=_corpus.opened(*given, "shortest", self.shortest))

    def open(self, kit: Kit) -> RestSession:
        return RestSession(self, self.store, kit)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        SparseDatastore.example().save(folder / "sparse")
        yield cls(datastore=str(folder / "sparse"))


class RestSession(DraftSessionBase):
    def __init__(self, options: Rest, store: SparseStore, kit: Kit) -> None:
        self.options, self.store, self.kit = options, store, kit

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        yield from ()
        options, kit = self.options, self.kit
        matches = self.store.longest(context.tokens, options.span, options.shortest)
        proposal = Proposal(kit, room, found="lexical" if matches else "none", nodes=options.nodes)
        if not matches:
            return proposal.draft()
        proposal.grade = min(matches[0].length, 9)
        if not kit.trees:
            rows = self.store.following(matches, max(room.limit, 1), options.places)
            proposal.nodes = room.limit  # a step that was begun may be longer than a tree
            proposal.copy(greediest(rows), 0, options.longest)
            return proposal.draft()
        rows = self.store.following(matches, options.longest, options.places)
        trie = heaviest(rows, options.nodes)
        nodes: dict[int, int] = {ROOT: ROOT}  # node of the trie -> node of the draft, if any
        main = ROOT  # the last node of the path along the most frequent children
        for place, (token, parent) in enumerate(zip(trie.tokens, trie.parents, strict=True)):
            if (above := nodes.get(parent)) is not None:
                origin = "main" if above == main else "branch"
                if (node := proposal.add(above, token, origin)) is not None:
                    nodes[place], main = node, node if origin == "main" else main
        return proposal.draft()
