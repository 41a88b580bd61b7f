"""Rules: how much of a draft is kept, and what a rule may bring along or measure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from semspec.models.location import ModelConfig
from semspec.protocols.in_server import InServer, Verified
from semspec.protocols.kit import Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin, Run
from semspec.types import Context, Draft, Gate, Read, Role, Sampling, Verdict, What

if TYPE_CHECKING:
    from torch import Tensor


class Rule(Plugin, Protocol):
    """Decides how much of a draft to keep."""

    needs: ClassVar[frozenset[What]]  # what it reads from the target
    cuts: ClassVar[Literal["tokens", "ends"]]  # where it may cut a draft (or nowhere)
    splits: ClassVar[frozenset[str] | None]  # the splits it can work with; None: any
    trees: ClassVar[bool]  # whether it walks trees, and not chains alone
    compares: ClassVar[bool]  # whether it needs the rows that were drafted from
    salvages: ClassVar[bool]  # whether a rejected step can be kept in part (``Kit.salvage``)
    reserve: ClassVar[int]  # positions beyond the text that its questions take, at most
    lossless: ClassVar[bool]  # whether what comes out has exactly the target's law
    greedy_only: ClassVar[bool]  # whether it makes sense at temperature 0 only
    may_change: ClassVar[tuple[str, ...]]  # options that may differ when a run goes on
    in_server: ClassVar[InServer | None]  # None: it cannot run inside a serving engine

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return models of its own, by role; ``target`` is there anyway."""
        ...

    @property
    def idle(self) -> bool:
        """True if speculative sampling alone decides."""
        ...

    def asked_inside(self) -> Mapping[str, Any]:
        """Return the options that a server which runs the rule inside is asked for."""
        ...

    def keeps(self, seen: Verified) -> Tensor:
        """Return which nodes it keeps whatever speculative sampling says: bool [requests * n]."""
        ...

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        """Rate the rule as the default for a target and a split, and say why; the highest is taken, 0 never.

        ``given`` names the options of the rule on the command line. None: not a default at all.
        """
        ...

    def asked_risk(self) -> Mapping[str, float]:
        """Return the risk that accepted steps are to keep, if one was asked; see ``step_truth``."""
        ...

    def probe_sources(self, run: Run) -> Mapping[Role, ProbeSource]:
        """Return by role the probe that an engine which offers ``score`` must hold."""
        ...

    def evidence(self) -> tuple[Read, ...]:
        """Return the reads that a model must make for it while it drafts; see ``Draft.evidence``."""
        ...

    def gate(self) -> Gate | None:
        """Return how far the draft model may write; see ``Draft.halted``."""
        ...

    def measure(self, bench: Bench) -> Self:
        """Return the rule with what it has measured on the loaded pair."""
        ...

    def measured(self) -> Mapping[str, Any]:
        """Return what ``measure`` has found, as JSON that a run records for its next start."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that is from; "" where its options say all."""
        ...

    def open(self, kit: Kit) -> RuleSession: ...


class RuleSession(Protocol):
    """A rule at work on one problem."""

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        """Decide about a draft of at least one token, or one that the rule's gate has halted.

        A rule may leave nodes of a tree out (``trim.keep_nodes``) before it asks anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProbeSource:
    """Where a probe is: a folder, ``embedded/NAME`` or ``owner/name``."""

    place: str
    revision: str | None = None
    allow_mismatch: bool = False  # it may have been trained for something else

    def __str__(self) -> str:
        return f"{self.place}@{self.revision}" if self.revision else self.place


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair and a run's questions, for a rule that measures something before the first problem."""

    # what the pair and its sampling are, as JSON: equal where what was measured holds, too
    identity: Mapping[str, Any]
    target: str  # its name
    drafts: bool  # whether anything is drafted
    draft: str | None  # the name of the small model that drafts, if one does
    sampling: Sampling
    # solves the questions with another rule, over and over with other random numbers, each with so many tokens at most;
    # yields how many tokens each has
    solve: Callable[[Rule, int], Generator[int, None, None]]
    recorded: Mapping[str, Any] | None = None  # what an earlier start of this run has recorded
    tell: Callable[[str], None] = lambda _: None  # says how it goes
    # as it is for the same pair with other options, such as the server's own temperature
    standing: Rule | None = None
