"""Rules inside a serving engine: what a rule says of itself there, and what it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from semspec.types import Sampling, What

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class InServer:
    """What a rule says of itself so that it can run inside a serving engine, beside what it reads (``Rule.needs``).

    A rule that cuts at ends runs there as it is, in a loop of each request, if all that it needs is in ``VERIFIED``.
    One that cuts at tokens says in ``Rule.keeps`` what it keeps of many drafts at once.
    """

    asked: Mapping[str, type] = field(default_factory=dict)  # options that a request may set: types
    server: tuple[str, ...] = ()  # options that are set where the server starts, if at all
    told: tuple[str, ...] = ()  # options that ``Rule.asked_inside`` expresses by those of ``asked``
    bound: bool = False  # whether it goes by ARC-Decode's bound: ``Verified.bound``


VERIFIED = frozenset({What.PROBS, What.LOGITS, What.LOGPROBS, What.TOP_K, What.POOLED})
"""What the pass that verifies a draft inside a serving engine can be read for."""


class Verified(Protocol):
    """Drafts that a serving engine's target has read, of requests with one rule and one sampling."""

    logits: Tensor  # [requests * n, vocabulary] raw
    tokens: Tensor  # [requests, n]: node 0 is a text's last token
    parents: Tensor  # [requests, n], -1 for none
    sampling: Sampling
    bound: Any  # ARC-Decode's bound of the model, for rules that ask for it

    @property
    def p(self) -> Tensor:
        """The target's distributions [requests * n, vocabulary], after temperature, top-k, top-p and min-p."""
        ...

    @property
    def rows(self) -> Tensor:
        """[requests * n] the row that judges each node."""
        ...

    @property
    def flat(self) -> Tensor:
        """[requests * n] the tokens."""
        ...
