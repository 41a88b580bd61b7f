"""What a certificate asks of an endpoint, and of a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from semspec.certify.laws import Law, Token, Tokens
from semspec.types import Sampling


class Drafts(NamedTuple):
    """How much was drafted, as a ``Drafting`` writer tells it."""

    drafted: int | None  # tokens; None: it tells only what was kept
    kept: int

    def plus(self, other: Drafts) -> Drafts:
        if self.drafted is None or other.drafted is None:
            return Drafts(None, self.kept + other.kept)
        return Drafts(self.drafted + other.drafted, self.kept + other.kept)

    def said(self) -> str:
        if not (self.drafted or self.kept):
            return "none while tokens were drawn, so nothing is known of its speculation."
        if self.drafted is None:
            return f"{self.kept:,} of the drawn tokens were drafted, the engine says."
        return f"{self.drafted:,} tokens while tokens were drawn, of which {self.kept:,} were kept, the server says."


class Writer(Protocol):
    """Something that writes on after a prefix, in whatever way it does: what is certified."""

    @property
    def name(self) -> str:
        """Say what it is, in a line, without credentials."""
        ...

    def encode(self, text: str) -> Tokens:
        """Return a prompt as the prefix that the others take."""
        ...

    def show(self, tokens: Tokens) -> str:
        """Return tokens as text."""
        ...

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        """Return the next tokens after each prefix, a request for each; neighbours are under way together.

        Fewer than ``length`` end in ``laws.END``.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Drafting(Protocol):
    """A writer that tells how much was drafted."""

    def drafts(self) -> Drafts:
        """Return how much was drafted since it was asked last."""
        ...


@runtime_checkable
class Reference(Protocol):
    """Something that tells the model's distributions without speculation."""

    cheap: bool  # every outcome can be scored; else only what is asked once

    @property
    def name(self) -> str:
        """Say what it is, in a line, without credentials."""
        ...

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        """Return what the token after each prefix is drawn from."""
        ...

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        """Return log-probabilities of the likeliest tokens after each prefix, and of one more, if known."""
        ...
