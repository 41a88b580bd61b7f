"""Choose how much to draft at a time: a fixed length, or by expected gain (``decoding.budget``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from semspec.types import Draft, Round, Turns


class Pace(Protocol):
    """Decides about the drafts of one problem, round by round, before and after they are made."""

    @property
    def resting(self) -> bool:
        """True while the drafter rests for so long that nothing is read for it."""
        ...

    @property
    def onward(self) -> bool:
        """True while drafts rest for long, so the target is likely to write on after its next units."""
        ...

    @property
    def chain(self) -> bool:
        """True if a tree drafter has to draft a chain next."""
        ...

    @property
    def gives_way(self) -> bool:
        """True if the target's plain writing may be cut short when other problems wait for a verdict."""
        ...

    @property
    def turns(self) -> Turns | None:
        """Who chooses between several sources of drafts; None: the drafter does."""
        ...

    def behind(self, context: int) -> None:
        """Note the context length before the next draft."""
        ...

    def units(self) -> int:
        """Return how many units to draft; 0: the target writes plainly."""
        ...

    def unit_cap(self) -> int:
        """Return the most tokens of a unit in the next draft."""
        ...

    def asked(self, units: int, seconds: float, passes: float = 0.0) -> None:
        """Note the seconds of a draft of ``units``; ``passes``: the part spent in model passes."""
        ...

    def cut(self, draft: Draft) -> None:
        """Drop what is not worth its place in the target's pass, before the verdict draws random numbers."""
        ...

    def alone(self, left: int) -> int:
        """Return how many units, at most ``left`` tokens, the target writes where nothing was drafted."""
        ...

    def observe(self, done: Round) -> None:
        """Learn from a round."""
        ...

    def over(self) -> None:
        """Note that the problem has ended or was given up, perhaps in the middle of a round."""
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
