"""Stoppers: decide when the thinking is done, and how to close it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from semspec.protocols.kit import Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin
from semspec.types import Context, Opinion, What


class Stopper(Plugin, Protocol):
    """Decides when the thinking is done; closing words and the answer follow."""

    plain: ClassVar[bool]  # it never stops anything
    needs: ClassVar[frozenset[What]]  # what it reads from the target

    @property
    def reserve(self) -> int:
        """Most positions beyond the text that its queries need."""
        ...

    @property
    def closing(self) -> Closing:
        """What closes the thinking, and how many tokens are reserved for the answer."""
        ...

    @property
    def audits(self) -> bool:
        """True if a run also solves stopped problems to their natural end, untimed, and compares."""
        ...

    def asked_risk(self) -> float | None:
        """Return the requested limit on the probability that a stop makes a right answer wrong; None: none was given."""
        ...

    def origin(self) -> str:
        """Say in a line what it decides by and where that comes from; "" if its options say it all."""
        ...

    def open(self, kit: Kit) -> StopSession: ...


class StopSession(Protocol):
    """A stopper at work on one problem."""

    def consider(self, context: Context, thought: int) -> Plan[Opinion]:
        """Say at the end of a step whether the thinking is done, after ``thought`` tokens of it.

        The context ends with the step. Queries may only use the kit's own random numbers, so that the text
        before a stop is the same as without a stopper.
        """
        ...


@dataclass(frozen=True, slots=True)
class Closing:
    """How a thinking is closed early."""

    words: str  # the last words of the thinking
    answer: str  # the beginning of the answer
    tokens: int  # reserved for the answer; 0: by the budget
