"""Drafters: who proposes tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from semspec.models.location import ModelConfig
from semspec.protocols.kit import Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin
from semspec.types import Context, Draft, Read, Role, Room, Round, Sampling, Seen, What


class Drafter(Plugin, Protocol):
    """Proposes tokens; ``draft`` is the role of a language model that it drafts with."""

    plain: ClassVar[bool]  # whether it never drafts, so that the target may write to the end
    ahead: ClassVar[bool]  # whether it can draft what follows ``Room.tail``
    rows: ClassVar[bool]  # whether the rows that it drafts from come with its drafts

    @property
    def needs(self) -> frozenset[What]:
        """Kinds of reads of the target that it asks for."""
        ...

    @property
    def levels(self) -> int:
        """Levels of its trees at most; 0: it drafts chains, as long as ``draft_length`` says.

        One with levels that drafts by a model's rows drafts a chain, too, where ``Room.chain`` asks for it.
        """
        ...

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return models of its own, by role; ``target`` is there anyway."""
        ...

    @property
    def own_prompt(self) -> bool:
        """True if its model may read the prompt in its own chat template if the target's does not fit."""
        ...

    def drawn(self, sampling: Sampling) -> bool:
        """Tell whether siblings in its trees are draws from their rows, not point masses."""
        ...

    @property
    def reach(self) -> int:
        """Tokens that it drafts at a time where tokens are the unit; 0: as ``draft_length`` says."""
        ...

    @property
    def chains(self) -> bool:
        """True if it may draft a chain in place of what ``reach`` counts, as long as ``draft_length`` says."""
        ...

    @property
    def beside(self) -> Drafter | None:
        """The model or head, one of its sources, beside which it copies: the pace says which of them drafts."""
        ...

    @property
    def refers(self) -> bool:
        """True if it copies from ``Kit.references`` by itself."""
        ...

    @property
    def remembers(self) -> int:
        """Return the MiB of earlier answers that it asks for as ``Kit.earlier``; 0: none."""
        ...

    def open(self, kit: Kit) -> DraftSession: ...


class DraftSession(Protocol):
    """A drafter at work on one problem."""

    watches: tuple[Read, ...]  # per-row reads that ride on every pass of the target
    # of what it watches and has missed, before a draft: it asks for all rows; False: for the newest one alone
    recalls: bool

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        """Propose at most ``room.tokens`` tokens; an empty draft leaves the round to the target."""
        ...

    def see(self, seen: Seen) -> None:
        """Take rows that it watches, of tokens that are in the context; comes before ``observe``."""
        ...

    def observe(self, context: Context, done: Round) -> None:
        """Learn which tokens were kept and written; ``context`` already holds them."""
        ...
