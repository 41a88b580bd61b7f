"""Stoppers: when the thinking is done, and how it is closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from semspec.protocols.kit import Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin
from semspec.types import Context, Opinion, What


class Stopper(Plugin, Protocol):
    """Tells when the thinking is done; the thinking is then closed in words, and the answer follows."""

    plain: ClassVar[bool]  # whether it never stops anything
    needs: ClassVar[frozenset[What]]  # what it reads from the target

    @property
    def reserve(self) -> int:
        """Positions beyond the text that its questions take, at most."""
        ...

    @property
    def closing(self) -> Closing:
        """What closes the thinking, and what is kept back for the answer."""
        ...

    @property
    def audits(self) -> bool:
        """True if a run also solves what was stopped to its natural end, outside its times, and compares."""
        ...

    def asked_risk(self) -> float | None:
        """Return the asked probability of changing a right answer into a wrong one; None: none was asked."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that is from; "" where its options say all."""
        ...

    def open(self, kit: Kit) -> StopSession: ...


class StopSession(Protocol):
    """A stopper at work on one problem."""

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        """Say at the end of a step whether the thinking is done, after ``thought`` tokens of it.

        The context ends with the step. What is asked here must not draw from any random numbers but the
        kit's own, so that the text before a stop is what it would have been without.
        """
        ...


@dataclass(frozen=True, slots=True)
class Closing:
    """How a thinking is closed before its own end."""

    words: str  # what is said last
    answer: str  # how the answer begins
    tokens: int  # kept back for the answer; 0: what suits the budget
