"""DReSD: draft what the target wrote in a corpus where its state was most like the last one (Gritta et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.datastores.dense import DenseStore
from semspec.drafters import _corpus
from semspec.drafters._base import DrafterBase, DraftSessionBase, rows_of
from semspec.drafters._proposal import Proposal
from semspec.errors import UserError
from semspec.protocols import Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import LAST_STATES, Context, Draft, Room, Seen, What

SHAPES = {True: (3, 20), False: (10, 10)}  # greedy -> (drafts, tokens in each), section 5.5


@register("drafter", "dresd")
@dataclass(frozen=True, kw_only=True)
class Dresd(DrafterBase):
    """Drafts what followed the target's most similar states in a corpus."""

    datastore: str = "embedded/dense-tiny"
    drafts: int = 0  # that form one tree; 0: 10, or 3 at temperature 0
    longest: int = 0  # tokens in a draft; 0: 10, or 20 at temperature 0
    neighbours: int = 32  # to look up; those that do not begin with the last token are dropped
    allow_mismatch: bool = False

    needs = frozenset({What.HIDDEN})

    def __post_init__(self) -> None:
        if min(self.drafts, self.longest) < 0 or self.neighbours < 1:
            raise UserError(
                f"drafts={self.drafts}, longest={self.longest},"
                f" neighbours={self.neighbours}: give drafts and longest 0 (as in the paper)"
                " or more, neighbours at least 1"
            )

    @property
    def reach(self) -> int:
        return self.longest or max(length for _, length in SHAPES.values())

    store: ClassVar[DenseStore]  # set by ``bind``

    def loads(self, run: Run) -> Sequence[Source]:
        return _corpus.sources(DenseDatastore, self.datastore, run)

    def bind(self, run: Run) -> Self:
        found = _corpus.load(DenseDatastore, self.datastore, run, self.allow_mismatch)
        store = found.open(index=True)
        _corpus.bind(self.datastore, store, run.models)
        return self.bound(store=store)

    def open(self, kit: Kit) -> DresdSession:
        return DresdSession(self, self.store, kit)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        DenseDatastore.example().save(folder / "dense")
        yield cls(datastore=str(folder / "dense"))


class DresdSession(DraftSessionBase):
    """Looks up the state that the text's last token was drawn from.

    What followed this state is therefore known, and neighbours that did not go on with that token
    are dropped (section 3.1).
    """

    watches = (LAST_STATES,)
    recalls = False

    def __init__(self, options: Dresd, store: DenseStore, kit: Kit) -> None:
        self.options, self.store, self.kit = options, store, kit
        self._states: dict[int, NDArray[np.float32]] = {}  # the newest two, by position

    def see(self, seen: Seen) -> None:
        """Keep two states: the last may be the last token's own, if the target wrote what was drafted."""
        newest = range(max(0, seen.count - 2), seen.count)
        rows = seen.values[LAST_STATES][newest.start : newest.stop, 0].float().numpy(force=True)
        self._states = {seen.start + at: row for at, row in zip(newest, rows, strict=True)}

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        kit, options = self.kit, self.options
        wanted = len(context) - 2
        if wanted < 0:
            return Draft(found="none")
        if wanted not in self._states:  # for the prompt: in the pass that it needs anyway
            self.see((yield from rows_of(context, kit, self.watches, wanted, -1)))
        drafts, longest = SHAPES[kit.sampling.greedy]
        drafts, longest = options.drafts or drafts, options.longest or longest
        length = longest if kit.trees else max(room.limit, 1)
        token = context.tokens[-1]
        near = self.store.nearest(self._states[wanted], options.neighbours, 1 + length)
        sharing = [n for n in near if n.following[:1] == [token] and len(n.following) > 1]
        proposal = Proposal(kit, room, found="semantic" if sharing else "none")
        if sharing:
            proposal.grade = min(9, max(0, int(10 * sharing[0].cosine)))
        different = dict.fromkeys(tuple(n.following[1:]) for n in sharing)  # the nearest first
        for rank, run in enumerate(list(different)[:drafts]):
            proposal.copy(run, 0, longest, origin="branch" if rank else "main")
        return proposal.draft()
