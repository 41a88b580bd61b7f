"""What was taken where an option was left open, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """A plugin that was chosen for the user; as text it is the line that a run prints."""

    kind: str  # engine, rule
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} ({self.why})" if self.why else f"{self.kind}: {self.name}"
