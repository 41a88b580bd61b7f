"""Rules: decide how much of a draft to keep, and what a rule may bring along or measure."""

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
    trees: ClassVar[bool]  # it walks trees, not only chains
    compares: ClassVar[bool]  # it needs the rows that were drafted from
    salvages: ClassVar[bool]  # a rejected step can be kept in part (``Kit.salvage``)
    reserve: ClassVar[int]  # most positions beyond the text that its queries need
    lossless: ClassVar[bool]  # the output has exactly the target's distribution
    greedy_only: ClassVar[bool]  # it only makes sense at temperature 0
    may_change: ClassVar[tuple[str, ...]]  # options that may change when a run is resumed
    in_server: ClassVar[InServer | None]  # None: it cannot run inside a serving engine

    def models(self) -> Mapping[Role, ModelConfig]:
        """Return its own models by role; ``target`` is always there."""
        ...

    @property
    def idle(self) -> bool:
        """True if speculative sampling alone decides."""
        ...

    def asked_inside(self) -> Mapping[str, Any]:
        """Return the options of a request to a server that runs the rule inside."""
        ...

    def keeps(self, seen: Verified) -> Tensor:
        """Return which nodes it keeps regardless of speculative sampling: bool [requests * n]."""
        ...

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        """Rate the rule as the default for a target and a split, and say why; the highest wins, 0 never does.

        ``given``: the rule's options on the command line. None: it is never a default.
        """
        ...

    def asked_risk(self) -> Mapping[str, float]:
        """Return the requested risk of accepted steps, if there is one; see ``step_truth``."""
        ...

    def probe_sources(self, run: Run) -> Mapping[Role, ProbeSource]:
        """Return, by role, the probe that an engine with ``What.SCORE`` must hold."""
        ...

    def evidence(self) -> tuple[Read, ...]:
        """Return what the draft model has to read for the rule while drafting; see ``Draft.evidence``."""
        ...

    def gate(self) -> Gate | None:
        """Return where to stop the draft model; see ``Draft.halted``."""
        ...

    def measure(self, bench: Bench) -> Self:
        """Return the rule with what it measured on the loaded pair."""
        ...

    def measured(self) -> Mapping[str, Any]:
        """Return the result of ``measure`` as JSON, which a run records for its next start."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that comes from; "" if its options say it all."""
        ...

    def open(self, kit: Kit) -> RuleSession: ...


class RuleSession(Protocol):
    """A rule at work on one problem."""

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        """Judge a draft of at least one token, or one that the rule's gate has halted.

        A rule may drop nodes of a tree (``trim.keep_nodes``) before it asks anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProbeSource:
    """Where a probe is: a folder, ``embedded/NAME`` or ``owner/name``."""

    place: str
    revision: str | None = None
    allow_mismatch: bool = False  # use it even if it was trained for something else

    def __str__(self) -> str:
        return f"{self.place}@{self.revision}" if self.revision else self.place


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A loaded pair and a run's questions, for a rule that measures before the first problem."""

    # identity of the pair and its sampling as JSON: a measurement also holds where this is equal
    identity: Mapping[str, Any]
    target: str  # the target's name
    drafts: bool  # whether anything is drafted
    draft: str | None  # name of the small model that drafts, if any
    sampling: Sampling
    # solves the questions over and over with another rule and new random numbers, each with at most so many tokens;
    # yields each one's number of tokens
    solve: Callable[[Rule, int], Generator[int, None, None]]
    recorded: Mapping[str, Any] | None = None  # recorded by an earlier start of this run
    tell: Callable[[str], None] = lambda _: None  # prints progress
    # the rule as measured for the same pair with other options, such as the server's own temperature
    standing: Rule | None = None
