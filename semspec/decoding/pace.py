"""The choice of how much to draft at a time: a fixed length, or (``decoding.budget``) by expected gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from semspec.types import Draft, Round, Turns


class Pace(Protocol):
    """Decides for one problem, round by round, about drafts before and after they are made."""

    @property
    def resting(self) -> bool:
        """True while the drafter is left alone for so long that nothing is read for it."""
        ...

    @property
    def onward(self) -> bool:
        """True while drafts rest for long: behind what the target writes next it is likely to write on."""
        ...

    @property
    def chain(self) -> bool:
        """True if the next draft is to be a chain where its drafter grows trees."""
        ...

    @property
    def gives_way(self) -> bool:
        """True if what the target writes alone may be cut short where others wait for a verdict on their drafts."""
        ...

    @property
    def turns(self) -> Turns | None:
        """Who says which of several sources drafts; None: the drafter does."""
        ...

    def behind(self, context: int) -> None:
        """Take note of how many positions are before the next draft."""
        ...

    def units(self) -> int:
        """Return how many units to draft; 0: the target writes without a draft."""
        ...

    def unit_cap(self) -> int:
        """Return the longest unit of the next draft."""
        ...

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        """Take note of what a draft of so many units has cost; of these seconds passes of models took ``passes``."""
        ...

    def cut(self, draft: Draft) -> None:
        """Drop what is not worth its place in the target's pass, before anything random of it is drawn."""
        ...

    def alone(self, left: int) -> int:
        """Return how many units the target writes, of ``left`` tokens at most, where nothing was drafted."""
        ...

    def observe(self, done: Round) -> None:
        """Learn from a round."""
        ...

    def over(self) -> None:
        """Take note that the problem has ended, or was given up, perhaps in the middle of a round."""
        ...


@dataclass(slots=True)
class Steady:
    """Drafts the same length every time."""

    length: int
    cap: int
    resting: bool = False
    onward: bool = False
    chain: bool = False
    gives_way: bool = False
    turns: Turns | None = None

    def behind(self, context: int) -> None:
        """Do nothing: the length is fixed."""

    def units(self) -> int:
        return self.length

    def unit_cap(self) -> int:
        return self.cap

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        """Do nothing: the length is fixed."""

    def cut(self, draft: Draft) -> None:
        """Do nothing: drafts are sent as they are."""

    def alone(self, left: int) -> int:
        return 1

    def observe(self, done: Round) -> None:
        """Do nothing: the length is fixed."""

    def over(self) -> None:
        """Do nothing: the length is fixed."""
