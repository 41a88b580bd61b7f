"""What a certificate asks of an endpoint, and of a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from semspec.certify.laws import Law, Token, Tokens
from semspec.types import Sampling


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
