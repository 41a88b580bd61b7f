"""Greedy text: does a server write, token for token, what the model alone would?

A reference that gives log-probabilities reads the server's own text: each token must be the most likely one, or tie with
it. With another server as reference, the two texts are compared up to their first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from semspec.certify.endpoints.base import Reference, Writer
from semspec.certify.laws import END, Token, Tokens
from semspec.types import Sampling

GREEDY = Sampling(0.0)


@dataclass(frozen=True)
class Difference:
    """A place where the server's token differs from the reference's."""

    at: int  # tokens after the prompt
    wrote: Token
    expected: Token
    wrote_logprob: float | None  # by the reference; None: the reference does not list the token
    expected_logprob: float | None

    @property
    def gap(self) -> float | None:
        """How much less likely the written token is, in nats; None if unknown."""
        if self.wrote_logprob is None or self.expected_logprob is None:
            return None
        return self.expected_logprob - self.wrote_logprob


@dataclass
class Compared:
    """One prompt's greedy text against the reference."""

    prompt: int
    tokens: int  # compared
    agreed: int
    first: Difference | None = None
    worst: Difference | None = None  # of the whole text if the reference reads it
    ties: int = 0  # differences within the tolerance
    faults: int = 0
    unknown: int = 0  # differences without log-probabilities

    def add(self, one: Difference, tie: float) -> None:
        self.first = self.first or one
        if one.gap is None and one.expected_logprob is None:
            self.unknown += 1
        elif one.gap is None:  # less likely than every token that the reference lists
            self.faults += 1
            self.worst = one
        else:
            self.ties += one.gap <= tie
            self.faults += one.gap > tie
            worst = self.worst
            if worst is None or (worst.gap is not None and one.gap > worst.gap):
                self.worst = one


@dataclass
class Result:
    """The greedy part of a certificate."""

    tie: float
    compared: list[Compared]
    notes: list[str] = field(default_factory=list)

    @property
    def faulty(self) -> bool:
        return any(one.faults for one in self.compared)

    @property
    def undecided(self) -> bool:
        return not self.faulty and any(one.unknown for one in self.compared)


def read_by(
    reference: Reference, number: int, prefix: Tokens, text: Tokens, tie: float
) -> Compared:
    """Compare each token of a text with the reference's most likely token there."""
    nodes = [(*prefix, *text[:i]) for i in range(len(text))]
    compared = Compared(number, len(text), 0)
    for at, (token, known) in enumerate(zip(text, reference.logprobs(nodes, text), strict=True)):
        best = max(known, key=lambda t: known[t])
        if token == best:
            compared.agreed += 1
        else:
            compared.add(Difference(at, token, best, known.get(token), known[best]), tie)
    return compared


def beside(
    number: int,
    prefix: Tokens,
    text: Tokens,
    other: Tokens,
    logprobs: Callable[[Tokens, Token], Mapping[Token, float]] | None,
    tie: float,
) -> Compared:
    """Compare two servers' texts up to the first difference; ``logprobs`` gives log-probabilities there."""
    pairs = list(zip(text, other, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return Compared(number, len(pairs), len(pairs))
    compared = Compared(number, at + 1, at)
    known = logprobs((*prefix, *text[:at]), text[at]) if logprobs is not None else {}
    wrote, expected = text[at], other[at]
    compared.add(Difference(at, wrote, expected, known.get(wrote), known.get(expected)), tie)
    return compared


def texts_of(writer: Writer, prefixes: Sequence[Tokens], length: int) -> list[Tokens]:
    return writer.write(prefixes, length, GREEDY)


def as_json(result: Result, show: Callable[[Tokens], str]) -> dict[str, Any]:
    """Return the result for certificate.json."""

    def told(one: Difference | None) -> dict[str, Any] | None:
        if one is None:
            return None
        texts = {
            f"{name}_text": "" if token == END else show((token,))
            for name, token in (("wrote", one.wrote), ("expected", one.expected))
        }
        return {**asdict(one), **texts, "gap": one.gap}

    return {
        "tie": result.tie,
        "faulty": result.faulty,
        "undecided": result.undecided,
        "tokens": sum(one.tokens for one in result.compared),
        "agreed": sum(one.agreed for one in result.compared),
        "ties": sum(one.ties for one in result.compared),
        "prompts": [
            asdict(one) | {"first": told(one.first), "worst": told(one.worst)}
            for one in result.compared
        ],
        "notes": result.notes,
    }
