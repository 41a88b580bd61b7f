"""The choice of a request's rule, and its verdict on many nodes at once.

The rules are the package's own (``semspec/rules``): their dataclasses check the options, their tensor
functions do the arithmetic. This module supplies their inputs inside a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from semspec.decoding.acceptance import without_gaps
from semspec.decoding.arc_bound import Constants, loose_nodes
from semspec.decoding.sampling import probabilities
from semspec.errors import UserError
from semspec.protocols import Rule
from semspec.registry import plugin
from semspec.rules.arc import Arc
from semspec.rules.topk_delta import TopKDelta, near_nodes
from semspec.rules.typical import Typical, typical_nodes
from semspec.sglang_plugin.protocol import RULE_OPTIONS, number
from semspec.types import Sampling

RULES = ("lossless", "arc", "typical", "topk_delta")


class Bound(Protocol):
    """The bound that ARC-Decode needs for the verified model."""

    def constants(self, temperature: float) -> Constants: ...

    def distances(self, drafted: Tensor, likeliest: Tensor) -> Tensor: ...

    def ends(self, tokens: Tensor) -> Tensor:
        """Return which tokens end a text."""


def named(given: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Rule | None:
    """Return the rule that a request names, else the server's; None for SGLang's own, lossless.

    ``given`` comes from ``protocol.rule_options``; options in ``otherwise`` apply unless the request
    names another rule. Raise UserError for an unknown rule or option.
    """
    own = dict(given)
    name = own.pop("accept", None)
    if name is None or name == otherwise.get("accept"):
        own = {k: v for k, v in otherwise.items() if k in RULE_OPTIONS and v is not None} | own
        name = otherwise.get("accept", "lossless")
    if name not in RULES:
        raise UserError(f"accept={name}: this server knows {', '.join(RULES)}")
    cls = plugin("accept", name).cls
    known = {f.name for f in fields(cls)} & set(RULE_OPTIONS)
    if unknown := set(own) - known:
        hint = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
        raise UserError(f"accept={name} knows no {', '.join(sorted(unknown))}: {hint}")
    try:
        typed = {key: number(key, value, RULE_OPTIONS[key]) for key, value in own.items()}
    except ValueError as error:
        raise UserError(str(error)) from error
    rule = cls(**typed)
    return None if name == "lossless" or (isinstance(rule, Arc) and rule.theta > 1) else rule


@dataclass
class Judged:
    """Requests with one rule and one sampling, and the target's rows over their trees."""

    logits: Tensor  # [requests * n, vocabulary]
    tokens: Tensor  # [requests, n]
    parents: Tensor  # [requests, n], -1 for none
    sampling: Sampling

    @cached_property
    def p(self) -> Tensor:
        """The target's distributions, after temperature, top-k, top-p and min-p."""
        return probabilities(self.logits, self.sampling)

    @cached_property
    def rows(self) -> Tensor:
        """[requests * n] the row that judges each node; an arbitrary row for nodes without parent."""
        count, n = self.parents.shape
        first = torch.arange(count, device=self.parents.device)[:, None] * n
        return (first + self.parents.clamp_min(0)).flatten()

    @cached_property
    def flat(self) -> Tensor:
        """[requests * n] the tokens, flattened."""
        return self.tokens.flatten().long()


def loosely(rule: Rule, seen: Judged, bound: Bound | None) -> Tensor:
    """Return which nodes the rule keeps regardless of speculative sampling: bool [requests, n]."""
    rows, tokens = seen.rows, seen.flat
    if isinstance(rule, Typical):
        loose = typical_nodes(seen.p, tokens, rows, rule.epsilon, rule.delta)
    elif isinstance(rule, TopKDelta):
        raw = seen.logits.float().log_softmax(-1)  # before temperature
        top = raw.topk(min(rule.k, raw.shape[-1]), -1)
        loose = near_nodes(top.indices, top.values, tokens, rows, rule.delta)
    else:
        assert isinstance(rule, Arc) and bound is not None
        best = seen.p.max(-1)
        likeliest = best.indices[rows]
        ends = (tokens != likeliest) & (bound.ends(tokens) | bound.ends(likeliest))
        loose = loose_nodes(
            bound.distances(tokens, likeliest),
            best.values[rows],
            seen.p[rows, tokens],
            ends,
            bound.constants(seen.sampling.temperature),
            rule.theta,
            rule.keep_excluded,
            rule.floor,
        )
        if not rule.resume:
            loose = loose.view_as(seen.parents).clone()
            loose[:, 0] = True  # the root is not judged
            loose = without_gaps(loose, seen.parents)
    loose = loose.view_as(seen.parents)
    # a grammar or a bias may have excluded a token altogether
    possible = seen.logits[rows, tokens] > -torch.inf
    return loose & possible.view_as(loose) & (seen.parents >= 0)
