"""Several sources at once: take the draft that should be kept longest, judging by earlier drafts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from semspec import registry
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.eagle3_head import Eagle3Head
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.decoding.witness import followed
from semspec.drafters._base import DrafterBase
from semspec.drafters._first import FirstSession, SeveralSessions
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.protocols import Drafter, DraftSession, Kit, Plan, Run, Source
from semspec.registry import register
from semspec.types import PROBS, Context, Draft, Role, Room, Sampling, What

PRIOR = 1.0  # expected gain, in tokens, of a draft that nothing is known about: so each is tried
KEEP = 0.95  # weight of all earlier measurements at each new one
PUBLIC = 5  # tokens that must match in the public code of SAM decoding, and its corpus bias
MODELS = {"lm": "model", "eagle3": "head"}  # sources that run a model, and their option for it
MATCHING: Mapping[
    str, Callable[[int], Mapping[str, int]]
] = {  # sources that know how many tokens matched, and their options for at least that many
    "suffix": lambda least: {"shortest": least, "threshold": least + PUBLIC},
    "prompt_lookup": lambda least: {"shortest": least, "ngram": max(3, least)},
    "rest": lambda least: {"shortest": least, "span": max(16, least)},
    "reference": lambda least: {"shortest": least},
}
MOST = 59  # of ``match``: suffix cuts matches at 64


@register("drafter", "hybrid")
@dataclass(frozen=True, kw_only=True)
class Hybrid(DrafterBase):
    """Picks the source whose drafts gained most so far, or copies a match and else asks a model."""

    sources: Any = "suffix+adapld+token_recycling"  # joined by plus signs, or [one,after,another]
    sparse: str = ""  # the datastore of rest, and a static one for suffix
    dense: str = ""  # the datastore of dresd
    # tokens that must match for a copy, else the last source drafts; 0: the best draft so far (with lm or eagle3: 5)
    match: int = 0
    lm: str = "embedded/tiny-draft"  # the model of lm: a folder or OWNER/NAME[@REVISION]
    eagle3: str = "embedded/eagle3-tiny"  # the head of eagle3: a folder or OWNER/NAME[@REVISION]
    # tokens that these two draft at a time if they grow no tree and lengths are fixed (adaptive=true: as if alone)
    chain: int = 5
    tree: str = ""  # the option ``tree`` of these two ("": chain for lm, dynamic for eagle3)
    tree_depth: int = 6
    tree_top_k: int = 10
    tree_nodes: int = 32
    remember: int = 0  # of suffix

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
        object.__setattr__(self, "sources", "+".join(names))  # frozen, and must be hashable
        if not 0 <= self.match <= MOST or self.chain < 1:
            raise UserError(
                f"match={self.match}, chain={self.chain}: give match from 0 to {MOST}, chain at least 1"
            )
        drafters = self._drafters()
        if self.least:
            self._check_order(list(drafters))

    def _check_order(self, names: Sequence[str]) -> None:
        *copying, last = names
        if not copying:
            raise UserError(
                f"sources={self.sources}: give something to copy from before {last} (suffix+{last})"
            )
        if wrong := [name for name in copying if name not in MATCHING]:
            way = (
                "as the last one" if wrong[0] in MODELS else "as the last one, or leave match= out"
            )
            raise UserError(
                f"sources={self.sources}: {wrong[0]} counts no tokens that match, as"
                f" {', '.join(MATCHING)} do: give it {way}"
            )

    def _drafters(self) -> dict[str, Any]:
        names = self.sources.split("+")
        drafters = {n: registry.plugin("drafter", n).cls(**self._options(n)) for n in names}
        for name, drafter in drafters.items():
            if name not in MODELS and (drafter.models() or drafter.plain or drafter.levels):
                raise UserError(
                    f"sources={self.sources}: {name} finds nothing in a text; choose among suffix,"
                    " prompt_lookup, reference, pld_plus, adapld, token_recycling, logitspec, rest and"
                    " dresd, and as the last one lm or eagle3"
                )
        return drafters

    @property
    def least(self) -> int:
        """Return how many tokens must match for a copy; 0: every source drafts, and the best is taken."""
        return self.match or (PUBLIC if set(MODELS) & set(self.sources.split("+")) else 0)

    def _options(self, name: str) -> dict[str, Any]:
        """Return the options that a source is built with."""
        if name in MODELS:
            sizes = {n: getattr(self, n) for n in ("tree_depth", "tree_top_k", "tree_nodes")}
            own = {"tree": self.tree} if self.tree else {}
            return {MODELS[name]: ModelConfig(path=getattr(self, name)), **sizes, **own}
        given: dict[str, Any] = {}
        if store := {"rest": self.sparse, "suffix": self.sparse, "dresd": self.dense}.get(name):
            given["datastore"] = store
        if name == "suffix" and self.remember:
            given["remember"] = self.remember
        if self.least and name in MATCHING:
            given |= MATCHING[name](self.least)
        return given

    def models(self) -> Mapping[Role, ModelConfig]:
        return {role: m for d in self._sources().values() for role, m in d.models().items()}

    @property
    def needs(self) -> frozenset[What]:
        """Return the kinds of reads that any of its sources asks for."""
        return frozenset[What]().union(*(drafter.needs for drafter in self._sources().values()))

    @property
    def levels(self) -> int:
        """Return the levels of a model's trees; trees of retrieval depend on what the rule can walk."""
        return max(int(drafter.levels) for drafter in self._sources().values())

    @property
    def reach(self) -> int:
        return max(int(drafter.reach) for drafter in self._sources().values())

    @property
    def beside(self) -> Drafter | None:
        *_, (name, last) = self._sources().items()
        return last if name in MODELS else None

    @property
    def chains(self) -> bool:
        return self.beside is not None

    @property
    def refers(self) -> bool:
        return any(drafter.refers for drafter in self._sources().values())

    @property
    def remembers(self) -> int:
        return max(int(drafter.remembers) for drafter in self._sources().values())

    @property
    def own_prompt(self) -> bool:
        return any(drafter.own_prompt for drafter in self._sources().values())

    def drawn(self, sampling: Sampling) -> bool:
        return any(drafter.drawn(sampling) for drafter in self._sources().values())

    drafters: ClassVar[Mapping[str, Any] | None] = None  # set by ``bind``

    def _sources(self) -> Mapping[str, Any]:
        """Return the drafters by name: the bound ones, or, before that, new ones."""
        return self.drafters or self._drafters()

    def loads(self, run: Run) -> Sequence[Source]:
        return [s for drafter in self._drafters().values() for s in drafter.loads(run)]

    def bind(self, run: Run) -> Self:
        return self.bound(drafters={n: d.bind(run) for n, d in self._drafters().items()})

    def open(self, kit: Kit) -> DraftSession:
        drafters = self._sources()
        if not self.least:
            return HybridSession({name: d.open(kit) for name, d in drafters.items()}, kit)
        *copying, last = drafters
        rows = tuple(read for read in kit.evidence if read == PROBS)  # and no other evidence
        other = drafters[last].open(replace(kit, evidence=rows, gate=None))
        length = drafters[last].reach or self.chain
        return FirstSession([drafters[name].open(kit) for name in copying], other, kit, length)

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        yield cls()
        SparseDatastore.example().save(folder / "sparse")
        DenseDatastore.example().save(folder / "dense")
        stores: dict[str, Any] = {"sparse": str(folder / "sparse"), "dense": str(folder / "dense")}
        yield cls(sources="rest,dresd,suffix", **stores)
        yield cls(sources="suffix+lm", match=2)
        Eagle3Head.example().save(folder / "head")
        head: dict[str, Any] = {"eagle3": str(folder / "head"), "sparse": stores["sparse"]}
        yield cls(sources="rest+suffix+eagle3", match=2, **head)


@dataclass(slots=True)
class Worth:
    """Average number of tokens that drafts of one kind have gained; newer drafts count more."""

    gained: float = PRIOR
    drafts: float = 1.0

    @property
    def mean(self) -> float:
        return self.gained / self.drafts

    def add(self, gained: int) -> None:
        self.gained = KEEP * self.gained + gained
        self.drafts = KEEP * self.drafts + 1


class HybridSession(SeveralSessions):
    """Every source drafts; after the round each draft, chosen or not, is compared with the text.

    The text is known only up to the end of the round: a draft that reaches further is underrated.
    """

    def __init__(self, sources: dict[str, DraftSession], kit: Kit) -> None:
        super().__init__(sources.values(), kit)
        self.sources = sources
        self.worth: dict[tuple[str, str, int], Worth] = {}  # by source, ``found`` and grade
        self._drafts: dict[str, Draft] = {}
        self._drafted_at = 0

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        came = context.tokens[self._drafted_at :]
        for name, draft in self._drafts.items():
            self._kind(name, draft).add(len(followed(draft, came)))
        self._drafts, self._drafted_at = {}, len(context)
        yield from self.catch_up(context)
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
