"""semspec's own fields in a request: the object ``semspec`` of its body, or the header in its place."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from semspec.serve.errors import refused
from semspec.serve.strict import Strict

HEADER = "x-semspec"
# numeric fields
NUMBERS = ("threshold", "risk", "draft_length", "thinking_threshold", "thinking_risk")


class Semspec(Strict):
    """How to speculate for this request."""

    rule: str | None = None
    threshold: float | None = None
    risk: float | None = None
    draft_length: Annotated[int, Field(ge=1, le=64)] | None = None
    # the stopper, which ends the thinking early; OpenAI's ``stop`` has stop texts
    thinking_stop: str | None = None
    thinking_threshold: float | None = None
    thinking_risk: float | None = None
    off: bool | None = None  # no drafts: the target writes alone
    steps: bool | None = None  # report each step: a delta in streams
    # whose request it is: its answer is kept for drafts of the same tenant's later requests only
    tenant: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @property
    def judging(self) -> tuple[str, ...]:
        """The given fields about judging drafts."""
        names = ("rule", "threshold", "risk")
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def drafting(self) -> tuple[str, ...]:
        """The given fields about drafting and judging."""
        return self.judging + ("draft_length",) * (self.draft_length is not None)

    @property
    def thinking(self) -> tuple[str, ...]:
        """The given fields about ending the thinking early."""
        asked = () if self.thinking_stop in (None, "none") else ("thinking_stop",)
        names = ("thinking_threshold", "thinking_risk")
        return (*asked, *(name for name in names if getattr(self, name) is not None))


def of_header(text: str) -> dict[str, Any]:
    """Parse a header such as ``rule=logprob; threshold=-3; off`` into the body's object."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name in found:
            raise refused(f"semspec.{name}", f"is given more than once in {HEADER}")
        if not equals or value in ("true", "false"):
            found[name] = value != "false"
        elif name in NUMBERS:
            try:
                found[name] = int(value) if name == "draft_length" else float(value)
            except ValueError:
                raise refused(f"semspec.{name}", f"{value!r} in {HEADER} is not a number") from None
        else:
            found[name] = value
    return found
