"""Log lines about servers that are lost, come back or are restarted."""

from __future__ import annotations

from typing import Literal, Self

from semspec.types import Role

State = Literal["lost", "back", "restart", "given_up"]
TOLD: dict[State, str] = {
    "lost": "is lost",
    "back": "is back",
    "restart": "is started again",
    "given_up": "is given up",
}


class ReplicaLine(str):
    """A line about one server, with its parts as fields for a JSON log."""

    role: Role
    server: str
    state: State
    why: str

    @classmethod
    def of(cls, role: Role, server: str, state: State, why: str) -> Self:
        line = cls(f"the {role}'s server at {server} {TOLD[state]}: {why}")
        line.role, line.server, line.state, line.why = role, server, state, why
        return line

    @property
    def fields(self) -> dict[str, str]:
        return {"role": self.role, "server": self.server, "state": self.state, "why": self.why}
