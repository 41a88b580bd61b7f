"""Drafters propose tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from semspec.models.location import ModelConfig
from semspec.protocols.kit import Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin
from semspec.types import Context, Draft, Read, Role, Room, Round, Sampling, Seen, What


class Drafter(Plugin, Protocol):
    """Proposes tokens; a language model that it drafts with has the role ``draft``."""

    plain: ClassVar[bool]  # it never drafts, so the target may write to the end
    ahead: ClassVar[bool]  # it can draft what follows ``Room.tail``
    rows: ClassVar[bool]  # its drafts come with the rows they were drafted from

    @property
    def needs(self) -> frozenset[What]:
        """What it reads from the target."""
        ...

    @property
    def levels(self) -> int:
        """Most levels of its trees; 0: it drafts chains of ``draft_length``.

        A tree drafter with ``rows`` can also draft a chain if ``Room.chain`` asks for it.
        """
        ...

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return its own models by role; ``target`` is always there."""
        ...

    @property
    def own_prompt(self) -> bool:
        """True if its model may read the prompt in its own chat template where the target's does not fit."""
        ...

    def drawn(self, sampling: Sampling) -> bool:
        """Return whether siblings in its trees are sampled from their rows; otherwise they are point masses."""
        ...

    @property
    def reach(self) -> int:
        """Tokens per draft where tokens are the unit; 0: ``draft_length`` decides."""
        ...

    @property
    def chains(self) -> bool:
        """True if it may draft a chain of ``draft_length`` in place of what ``reach`` counts."""
        ...

    @property
    def beside(self) -> Drafter | None:
        """The model or head beside which it copies, both its sources; the pace chooses which of them drafts."""
        ...

    @property
    def refers(self) -> bool:
        """True if it copies from ``Kit.references`` itself."""
        ...

    def can_draft(self, references: bool) -> bool:
        """Return whether it can draft anything for a problem that comes with references, or without."""
        ...

    @property
    def remembers(self) -> int:
        """MiB of earlier answers that it wants as ``Kit.earlier``; 0: none."""
        ...

    def open(self, kit: Kit) -> DraftSession: ...


class DraftSession(Protocol):
    """A drafter at work on one problem."""

    watches: tuple[Read, ...]  # per-row reads that are added to every pass of the target
    # before a draft, it asks for all watched rows that it has missed; False: only for the newest one
    recalls: bool

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        """Propose at most ``room.tokens`` tokens; an empty draft leaves the round to the target."""
        ...

    def see(self, seen: Seen) -> None:
        """Take watched rows of tokens that are in the context; called before ``observe``."""
        ...

    def observe(self, context: Context, done: Round) -> None:
        """Learn which tokens were kept and written; ``context`` already holds them."""
        ...
