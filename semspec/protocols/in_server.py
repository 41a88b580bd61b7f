"""Rules inside a serving engine: what a rule declares, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from semspec.types import Sampling, What

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class InServer:
    """What a rule declares to run inside a serving engine, besides what it reads (``Rule.needs``).

    A rule that cuts at ends runs there unchanged, in a loop per request, if everything it needs is in ``VERIFIED``.
    A rule that cuts at tokens implements ``Rule.keeps`` for many drafts at once.
    """

    asked: Mapping[str, type] = field(default_factory=dict)  # options that a request may set: types
    server: tuple[str, ...] = ()  # options that can only be set at the server's start
    told: tuple[str, ...] = ()  # options that ``Rule.asked_inside`` expresses by those of ``asked``
    bound: bool = False  # it uses ARC-Decode's bound: ``Verified.bound``


VERIFIED = frozenset({What.PROBS, What.LOGITS, What.LOGPROBS, What.TOP_K, What.POOLED})
"""What a serving engine's verifying pass can read."""


class Verified(Protocol):
    """Drafts that a serving engine's target has read, from requests with the same rule and sampling."""

    logits: Tensor  # [requests * n, vocabulary] raw
    tokens: Tensor  # [requests, n]; node 0 is the text's last token
    parents: Tensor  # [requests, n], -1 for none
    sampling: Sampling
    bound: Any  # ARC-Decode's bound for the model, if the rule uses it

    @property
    def p(self) -> Tensor:
        """The target's distributions [requests * n, vocabulary], after temperature, top-k, top-p and min-p."""
        ...

    @property
    def rows(self) -> Tensor:
        """The row that judges each node, [requests * n]."""
        ...

    @property
    def flat(self) -> Tensor:
        """The tokens, [requests * n]."""
        ...
