"""Several sources at once: the draft that is expected to be kept longest, by what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec import registry
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.decoding.witness import followed
from semspec.drafters._base import DrafterBase, DraftSessionBase, rows_of
from semspec.drafters._memory import RememberingSession
from semspec.errors import UserError
from semspec.protocols import DraftSession, Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import Context, Draft, Room, Seen, What

PRIOR = 1.0  # tokens that a draft nothing is known about is expected to gain: so each is tried
KEEP = 0.95  # of what was measured before, at each new measurement


@register("drafter", "hybrid")
@dataclass(frozen=True, kw_only=True)
class Hybrid(DrafterBase):
    """The best of several sources, by match, similarity and what their drafts have been worth."""

    sources: Any = "suffix+adapld+token_recycling"  # joined by plus signs, or [one,after,another]
    sparse: str = ""  # the datastore of rest, and a static one for suffix
    dense: str = ""  # the datastore of dresd

    def __post_init__(self) -> None:
        given = self.sources
        # older runs joined them by commas, which the command line takes for a sweep
        listed = re.split("[+,]", given) if isinstance(given, str) else given
        words = listed if isinstance(listed, (list, tuple)) else []
        names = [name for word in words if (name := str(word).strip())]
        if not names or len(set(names)) < len(names) or "hybrid" in names:
            raise UserError(
                f"sources={given}: give different drafters, joined by plus signs (suffix+adapld)"
            )
        object.__setattr__(self, "sources", "+".join(names))  # frozen, and to be hashed
        self._drafters()

    def _drafters(self) -> dict[str, Any]:
        names = self.sources.split("+")
        stores = {"rest": self.sparse, "suffix": self.sparse, "dresd": self.dense}
        given = {name: {"datastore": store} for name, store in stores.items() if store}
        drafters = {n: registry.plugin("drafter", n).cls(**given.get(n, {})) for n in names}
        for name, drafter in drafters.items():
            if drafter.models() or drafter.plain or drafter.levels:
                raise UserError(
                    f"sources={self.sources}: {name} finds nothing in a text; choose among suffix,"
                    " prompt_lookup, pld_plus, adapld, token_recycling, logitspec, rest and dresd"
                )
        return drafters

    @property
    def needs(self) -> frozenset[What]:
        """Kinds of reads that any of its sources asks for."""
        return frozenset[What]().union(*(drafter.needs for drafter in self._drafters().values()))

    @property
    def reach(self) -> int:
        return max(int(drafter.reach) for drafter in self._drafters().values())

    drafters: ClassVar[Mapping[str, Any] | None] = None  # once bound

    def loads(self, run: Run) -> Sequence[Source]:
        return [s for drafter in self._drafters().values() for s in drafter.loads(run)]

    def bind(self, run: Run) -> Self:
        return self.bound(drafters={n: d.bind(run) for n, d in self._drafters().items()})

    def open(self, kit: Kit) -> HybridSession:
        drafters = self.drafters or self._drafters()
        return HybridSession({name: d.open(kit) for name, d in drafters.items()}, kit)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls()
        SparseDatastore.example().save(folder / "sparse")
        DenseDatastore.example().save(folder / "dense")
        stores = {"sparse": str(folder / "sparse"), "dense": str(folder / "dense")}
        yield cls(sources="rest,dresd,suffix", **stores)


@dataclass(slots=True)
class Worth:
    """Tokens that drafts of one kind have gained on average, newer ones counting more."""

    gained: float = PRIOR
    drafts: float = 1.0

    @property
    def mean(self) -> float:
        return self.gained / self.drafts

    def add(self, gained: int) -> None:
        self.gained = KEEP * self.gained + gained
        self.drafts = KEEP * self.drafts + 1


class HybridSession(DraftSessionBase):
    """Every source drafts; after the round each is held against what came, chosen or not.

    What came is known as far as the round went: a draft that would have gone on counts as short.
    """

    def __init__(self, sources: dict[str, DraftSession], kit: Kit) -> None:
        self.sources, self.kit = sources, kit
        self.watches = tuple(
            dict.fromkeys(read for session in sources.values() for read in session.watches)
        )
        self.worth: dict[tuple[str, str, int], Worth] = {}  # by source, find and grade
        self._drafts: dict[str, Draft] = {}
        self._drafted_at = 0

    def see(self, seen: Seen) -> None:
        for session in self.sources.values():
            session.see(seen)

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        came = context.tokens[self._drafted_at :]
        for name, draft in self._drafts.items():
            self._kind(name, draft).add(len(followed(draft, came)))
        self._drafts, self._drafted_at = {}, len(context)
        yield from self._catch_up(context)
        best, most = Draft(found="none"), 0.0
        for name, session in self.sources.items():
            draft = yield from session.draft(context, room)
            if draft.tokens:
                self._drafts[name] = draft
                expected = self._kind(name, draft).mean
                if expected > most:
                    best, most = draft, expected
        return best

    def _kind(self, name: str, draft: Draft) -> Worth:
        return self.worth.setdefault((name, draft.found, draft.grade), Worth())

    def _catch_up(self, context: Context) -> Plan[None]:
        """One question for all sources: the prompt is read once."""
        keeping = [s for s in self.sources.values() if isinstance(s, RememberingSession)]
        start = min((session.memory.known for session in keeping), default=len(context))
        if start < len(context) - 1:
            self.see((yield from rows_of(context, self.kit, self.watches, start, -1)))
