"""What a certificate needs from an endpoint and from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from semspec.certify.laws import Law, Token, Tokens
from semspec.types import Sampling


class Drafts(NamedTuple):
    """How much was drafted, as a ``Drafting`` writer reports it."""

    drafted: int | None  # tokens; None: it reports only the tokens kept
    kept: int

    def plus(self, other: Drafts) -> Drafts:
        if self.drafted is None or other.drafted is None:
            return Drafts(None, self.kept + other.kept)
        return Drafts(self.drafted + other.drafted, self.kept + other.kept)

    def said(self) -> str:
        if not (self.drafted or self.kept):
            return "none during sampling, so the sampled tokens say nothing about speculation."
        if self.drafted is None:
            return f"the engine reports {self.kept:,} drafted tokens among the sampled ones."
        return f"the server reports {self.kept:,} accepted of {self.drafted:,} drafted tokens during sampling."


class Writer(Protocol):
    """Something that continues a prefix, by whatever method: what gets certified."""

    @property
    def name(self) -> str:
        """A one-line description without credentials."""
        ...

    def encode(self, text: str) -> Tokens:
        """Return a prompt as the prefix that the other methods take."""
        ...

    def show(self, tokens: Tokens) -> str:
        """Return tokens as text."""
        ...

    def write(self, prefixes: Sequence[Tokens], length: int, sampling: Sampling) -> list[Tokens]:
        """Return the next tokens after each prefix, with one request each; neighbours run at the same time.

        An outcome of fewer than ``length`` tokens ends in ``laws.END``.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Drafting(Protocol):
    """A writer that reports how much was drafted."""

    def drafts(self) -> Drafts:
        """Return how much was drafted since the last call."""
        ...


@runtime_checkable
class Reference(Protocol):
    """Something that gives the model's distributions without speculation."""

    cheap: bool  # False: each law costs a request, so laws are kept and outcomes are not all scored

    @property
    def name(self) -> str:
        """A one-line description without credentials."""
        ...

    def laws(self, prefixes: Sequence[Tokens], sampling: Sampling) -> list[Law]:
        """Return the law of the token after each prefix."""
        ...

    def logprobs(
        self, prefixes: Sequence[Tokens], also: Sequence[Token]
    ) -> list[Mapping[Token, float]]:
        """Return log-probabilities of the most likely tokens after each prefix and, if known, of its token in ``also``."""
        ...
