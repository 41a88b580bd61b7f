"""What was chosen for an open option, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """A plugin chosen for the user; ``str`` gives the line that a run prints."""

    kind: str  # engine, rule
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} ({self.why})" if self.why else f"{self.kind}: {self.name}"
