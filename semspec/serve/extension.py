"""What is ours in a request: the object ``semspec`` of its body, and the header that may stand for it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from semspec.serve.errors import refused
from semspec.serve.strict import Strict

HEADER = "x-semspec"
# fields of the object that are numbers
NUMBERS = ("threshold", "risk", "draft_length", "thinking_threshold", "thinking_risk")


class Semspec(Strict):
    """What is ours: how this request is speculated about."""

    rule: str | None = None
    threshold: float | None = None
    risk: float | None = None
    draft_length: Annotated[int, Field(ge=1, le=64)] | None = None
    # who says that the thinking is done; OpenAI's ``stop`` is for texts
    thinking_stop: str | None = None
    thinking_threshold: float | None = None
    thinking_risk: float | None = None
    off: bool | None = None  # the target alone
    steps: bool | None = None  # a delta for each step
    # whose question it is: answers are kept for later questions of the same tenant alone
    tenant: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @property
    def drafting(self) -> tuple[str, ...]:
        """The fields that say how this request is drafted and judged."""
        names = ("rule", "threshold", "risk", "draft_length")
        return tuple(name for name in names if getattr(self, name) is not None)

    @property
    def thinking(self) -> tuple[str, ...]:
        """The fields that say how its thinking is stopped."""
        asked = () if self.thinking_stop in (None, "none") else ("thinking_stop",)
        names = ("thinking_threshold", "thinking_risk")
        return (*asked, *(name for name in names if getattr(self, name) is not None))


def of_header(text: str) -> dict[str, Any]:
    """Read ``rule=logprob; threshold=-3; off`` as the body's object."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
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
