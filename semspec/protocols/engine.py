"""Engines run a model and answer queries; some can do more."""

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
    """The options of an engine: the plugin that creates the engine of each model."""

    offers: ClassVar[frozenset[What]]  # what it can read
    roles: ClassVar[frozenset[Role] | None]  # the models that it can run; None: any
    may_change: ClassVar[tuple[str, ...]]  # options that may change when a run is resumed

    @property
    def holds_weights(self) -> bool:
        """True if weights are loaded on this machine; otherwise a model's folder need not have them."""
        ...

    def verifies(self, setup: Setup) -> tuple[bool, str]:
        """Return whether servers may verify drafts by themselves, so that nothing is read here, and if not, a remedy."""
        ...

    @property
    def key(self) -> str:
        """The key of shared engines: solvers with the same key share servers and models."""
        ...

    def drafting(self, small: Small) -> Self:
        """Return the options for a run whose own server makes and verifies the drafts, or else these options."""
        ...

    def reaches(self, role: Role) -> bool:
        """Return False for a model without a given location, which may not be needed."""
        ...

    @classmethod
    def suits(cls) -> tuple[int, str] | None:
        """Rate the engine for this machine, and say why; ``engine=auto`` takes the highest.

        0: it does not work here without further options. None: never choose it automatically.
        """
        ...

    def check_machine(self, models: Mapping[Role, ModelConfig], max_new_tokens: int) -> None:
        """Raise UserError, before anything is fetched, if the models cannot run on this machine."""
        ...

    def needed(
        self, models: Mapping[Role, ModelConfig], max_new_tokens: int, problems: int
    ) -> Sequence[str]:
        """Describe what the models need and what this machine has, in a line per device or server."""
        ...

    def copies(self, role: Role) -> int:
        """Return how many copies of a model are loaded here: one for each server that the run starts."""
        ...

    def hosting(
        self, needs: Sequence[Need], logs: Path, tell: Callable[[str], object], waits: bool = True
    ) -> AbstractContextManager[Self]:
        """Start what all models of a process load from, such as servers, and stop it at exit.

        Yields the options to load them with. ``tell`` gets lines about progress. ``waits``: queries to a server that has
        ended wait while it is restarted.
        """
        ...

    def retire(self) -> None:
        """Stop restarting servers that end from now on. For the options that ``hosting`` yields; from any thread."""
        ...

    def load(
        self,
        folder_or_repo: str,
        revision: str | None = None,
        role: Role = "target",
        probes: Sequence[str] = (),
    ) -> Engine:
        """Load the engine of one model, with these probes if it can hold them."""
        ...


@dataclass(frozen=True)
class Small:
    """A small model that drafts tokens inside the target's server, which also verifies them."""

    model: str  # a folder, embedded/NAME, or owner/name[@revision]
    folder: Path
    length: int  # tokens per draft
    adaptive: bool  # draft only where it pays


@dataclass(frozen=True, slots=True)
class Need:
    """A model that the engines of one process will run."""

    role: Role
    folder: Path
    probes: tuple[str, ...] = ()  # that it has to hold for all its users
    max_new_tokens: int = 512
    problems: int = 1  # running at a time
    small: Small | None = None  # drafts inside its server


class Engine(Protocol):
    """Answers queries; knows token ids, not text."""

    offers: frozenset[What]
    vocabulary: int
    layers: int
    width: int

    stop_ids: frozenset[int]  # end of text

    @property
    def context_limit(self) -> int:
        """Most tokens of a context."""
        ...

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer a batch: queries of different contexts, each with its own rng."""
        ...

    def forget(self, context: Context) -> None:
        """Free the session of a finished problem."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Concurrent(Engine, Protocol):
    """An engine that takes a query at any time, such as a server.

    ``forget`` then also gives up a context's running queries.
    """

    def submit(self, query: Query) -> Future[Answer]:
        """Submit a query and return at once."""
        ...


@runtime_checkable
class Onward(Concurrent, Protocol):
    """An engine that may write on after an answer when the caller is likely to ask for more (``Generate.onward``)."""

    def halt(self, context: Context) -> None:
        """Stop writing beyond what was asked for in a context. Returns at once; from any thread."""
        ...


Standing = Literal["there", "away", "over"]


@runtime_checkable
class Watched(Protocol):
    """An engine whose model runs on servers, which may fail."""

    def standing(self) -> Future[Standing]:
        """Check the servers; return at once, from any thread.

        The result is "there" if one answers, "away" if none does, and "over" if none will, because this process started
        them and they have ended.
        """
        ...


@runtime_checkable
class OnServers(Protocol):
    """An engine whose model runs on servers, with what is known about them."""

    @property
    def served(self) -> str:
        """The models that the servers report; "" if that is not checked, or known from their files."""
        ...

    @property
    def inside(self) -> Mapping[str, Any] | None:
        """The servers' description of the loop that they run inside; None: they run none."""
        ...

    @property
    def away(self) -> int:
        """Number of servers that were lost and have not answered since."""
        ...

    @property
    def ended(self) -> bool:
        """True while all servers were started by this process and have ended."""
        ...


@runtime_checkable
class Constraining(Engine, Protocol):
    """An engine that can constrain its output to a grammar (``Generate.grammar``)."""

    holds_grammars: bool


@runtime_checkable
class Caching(Engine, Protocol):
    """An engine whose KV cache is in this process's memory; only the caller limits it."""

    def session_bytes(self, positions: int) -> int:
        """Return the most memory that a context of so many tokens takes."""
        ...

    def free_bytes(self) -> int:
        """Return the free memory of the engine's device, besides the existing caches."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """Return the memory taken by ``weights`` and by ``cache``."""
        ...
