"""Engines: who runs a model and answers queries, and what some can do beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from semspec.models.location import ModelConfig
from semspec.protocols.plugin import Plugin
from semspec.types import Answer, Context, Query, Role, What

if TYPE_CHECKING:
    from semspec.protocols.setup import Setup


class EngineOptions(Plugin, Protocol):
    """The options of an engine: the plugin from which the engine of each model is made."""

    offers: ClassVar[frozenset[What]]  # what can be read
    roles: ClassVar[frozenset[Role] | None]  # the models that it can run; None: any
    may_change: ClassVar[tuple[str, ...]]  # options that may differ when a run goes on

    @property
    def holds_weights(self) -> bool:
        """True if weights are loaded on this machine; else a model's folder need not have them."""
        ...

    def verifies(self, setup: Setup) -> tuple[bool, str]:
        """Say if servers may verify drafts by themselves, so that nothing is read here; if not, how they could."""
        ...

    @property
    def key(self) -> str:
        """What tells engines apart that several solvers share: those of one key share servers and models."""
        ...

    def drafting(self, small: Small) -> Self:
        """Return the options for a run whose drafts a server of its own makes and verifies; else these."""
        ...

    def reaches(self, role: Role) -> bool:
        """Return False for a model that nobody has said where to find: there may be no need for it."""
        ...

    @classmethod
    def suits(cls) -> tuple[int, str] | None:
        """Rate the engine for this machine, and say why: the highest is ``engine=auto``.

        0: it does not work here by itself. None: nobody wants it who does not name it.
        """
        ...

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError if models cannot run on this machine, before any is fetched."""
        ...

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        """Say what models take of this machine, of what is there: a line for each device or server."""
        ...

    def copies(self, role: Role) -> int:
        """Return how many times a model is loaded here: as many as it has servers of a run's own."""
        ...

    def hosting(
        self, needs: Sequence[Need], logs: Path, tell: Callable[[str], object], waits: bool = True
    ) -> AbstractContextManager[Self]:
        """Make ready what all models of a process load from, such as servers; end that at exit.

        Yields the options to load them with. ``tell`` gets lines about progress. ``waits``: questions to a server that
        has ended wait while it is started again.
        """
        ...

    def retire(self) -> None:
        """Start no server again that ends from now on. Of the options that ``hosting`` yields; from any thread."""
        ...

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> Engine:
        """Load the engine of one model, which holds these probes if it can."""
        ...


@dataclass(frozen=True)
class Small:
    """A small model that drafts tokens inside the target's server, which verifies them by itself."""

    model: str  # a folder, embedded/NAME, or owner/name[@revision]
    folder: Path
    length: int  # tokens drafted at a time
    adaptive: bool  # only where it pays


@dataclass(frozen=True, slots=True)
class Need:
    """A model that the engines of one process are going to run."""

    role: Role
    folder: Path
    probes: tuple[str, ...] = ()  # that it holds, of all who use it
    max_new_tokens: int = 512
    problems: int = 1  # under way at a time
    small: Small | None = None  # that drafts inside its server


class Engine(Protocol):
    """Answers queries; knows token ids and nothing of text."""

    offers: frozenset[What]
    vocabulary: int
    layers: int
    width: int

    stop_ids: frozenset[int]  # end of text

    @property
    def context_limit(self) -> int:
        """Tokens that a context may have."""
        ...

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer a batch: queries of different contexts, each with its own rng."""
        ...

    def forget(self, context: Context) -> None:
        """Free the session of a problem that is over."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Concurrent(Engine, Protocol):
    """An engine that takes a query at any time, whatever else is under way: a server.

    ``forget`` then also gives up what is still under way for a context.
    """

    def submit(self, query: Query) -> Future[Answer]:
        """Take a query and return at once."""
        ...


@runtime_checkable
class Onward(Concurrent, Protocol):
    """An engine that may write on behind an answer, for who is likely to ask for more (``Generate.onward``)."""

    def halt(self, context: Context) -> None:
        """Write no more for a context than was asked for. Returns at once, from any thread."""
        ...


Standing = Literal["there", "away", "over"]


@runtime_checkable
class Watched(Protocol):
    """An engine whose model runs on servers, which may be lost."""

    def standing(self) -> Future[Standing]:
        """Look for the servers, from any thread, and return at once.

        The result is "there" if one answers, "away" if none does, "over" if none is going to: this process has started
        them, and they have ended.
        """
        ...


@runtime_checkable
class OnServers(Protocol):
    """An engine whose model runs on servers, and what is known of these."""

    @property
    def served(self) -> str:
        """Return the models that the servers report; "" if that is not checked, or known from their files."""
        ...

    @property
    def inside(self) -> Mapping[str, Any] | None:
        """Return what the servers say of the loop that they run inside; None: they run none."""
        ...

    @property
    def away(self) -> int:
        """Count the servers that were lost and have not answered since."""
        ...

    @property
    def ended(self) -> bool:
        """True while every server is one that this process has started, and has ended."""
        ...


@runtime_checkable
class Constraining(Engine, Protocol):
    """An engine that can hold what its model writes to a grammar (``Generate.grammar``)."""

    holds_grammars: bool


@runtime_checkable
class Caching(Engine, Protocol):
    """An engine whose KV cache is memory of this process, which nobody but the caller bounds."""

    def session_bytes(self, positions: int) -> int:
        """Return the memory that a context of so many tokens may take."""
        ...

    def free_bytes(self) -> int:
        """Return the memory of the engine's device that is free, beside all caches that are there."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """Return what is taken by ``weights`` and by ``cache``."""
        ...
