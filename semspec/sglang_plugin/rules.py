"""Choose a request's rule, and apply it to many nodes at once.

The rules are the package's own (``semspec/rules``). Each declares what it needs inside a server and what a request may
set (``Rule.in_server``), and decides what to keep (``Rule.keeps``). This module supplies their inputs and knows none by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from semspec.decoding.arc_bound import Constants
from semspec.decoding.sampling import probabilities
from semspec.errors import UserError
from semspec.protocols import VERIFIED, Rule
from semspec.registry import plugins
from semspec.sglang_plugin.protocol import LOOP_OPTIONS, number, rule_kinds
from semspec.sglang_plugin.steps import Steps
from semspec.types import Sampling

OFF = "off"  # draft nothing


class Bound(Protocol):
    """The bound that ARC-Decode needs for the verified model."""

    def constants(self, temperature: float) -> Constants: ...

    def distances(self, drafted: Tensor, likeliest: Tensor) -> Tensor: ...

    def ends(self, tokens: Tensor) -> Tensor:
        """Return, for each token, whether it ends a text."""


def judges_steps(cls: type[Any]) -> bool:
    """Return whether a rule judges whole steps, and so needs a loop per request."""
    return bool(cls.cuts == "ends")


@cache
def known_rules() -> Mapping[str, type[Any]]:
    """Return the rules that can run inside a server, by name: they declare it and read only what a verifying pass offers."""
    found = {name: rule.cls for name, rule in plugins("accept").items()}
    return {
        name: cls
        for name, cls in found.items()
        if cls.in_server is not None and (not judges_steps(cls) or cls.needs <= VERIFIED)
    }


def server_options() -> Mapping[str, type | None]:
    """Return the options that may be set when the server starts, with the type of those that are numbers."""
    every = [cls.in_server for cls in known_rules().values()]
    return {
        **dict.fromkeys((name for declared in every for name in declared.server), None),
        **rule_kinds(),
        **LOOP_OPTIONS,
    }


def named(given: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Rule | Steps | None:
    """Return the rule that a request names, else the server's; None for ``off`` and for SGLang's own lossless rule.

    ``given`` comes from ``protocol.rule_options``. The server's options in ``otherwise`` apply unless the
    request names another rule. Raise UserError for an unknown rule or option.
    """
    own = dict(given)
    name = own.pop("accept", None)
    kinds = {**rule_kinds(), **LOOP_OPTIONS}
    if name is None or name == otherwise.get("accept"):
        own = {k: v for k, v in otherwise.items() if k in kinds and v is not None} | own
        name = otherwise.get("accept", "lossless")
    rules = known_rules()
    if name not in rules and name != OFF:
        raise UserError(f"accept={name}: this server has only {', '.join(rules)}, {OFF}")
    cls = None if name == OFF else rules[name]
    known = set(cls.in_server.asked) if cls is not None else set()
    known |= set(LOOP_OPTIONS) if cls is not None and judges_steps(cls) else set()
    if unknown := set(own) - known:
        hint = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
        raise UserError(f"accept={name} has no option {', '.join(sorted(unknown))}: {hint}")
    try:
        typed = {key: number(key, value, kinds[key]) for key, value in own.items()}
    except ValueError as error:
        raise UserError(str(error)) from error
    if cls is None:
        return None
    drafting = {key: typed.pop(key) for key in LOOP_OPTIONS if key in typed}
    there = {key: otherwise[key] for key in cls.in_server.server if otherwise.get(key)}
    rule: Rule = cls(**typed, **there)
    if judges_steps(cls):
        return Steps(rule=rule, **drafting)
    return None if rule.idle else rule


@dataclass
class Judged:
    """Requests that share a rule and a sampling, with the target's rows for their trees."""

    logits: Tensor  # [requests * n, vocabulary]
    tokens: Tensor  # [requests, n]
    parents: Tensor  # [requests, n], -1 for none
    sampling: Sampling
    bound: Bound | None = None  # for rules that use ARC-Decode's bound

    @cached_property
    def p(self) -> Tensor:
        """The target's distributions, after temperature, top-k, top-p and min-p."""
        return probabilities(self.logits, self.sampling)

    @cached_property
    def rows(self) -> Tensor:
        """[requests * n] the row that judges each node; arbitrary for nodes without a parent."""
        count, n = self.parents.shape
        first = torch.arange(count, device=self.parents.device)[:, None] * n
        return (first + self.parents.clamp_min(0)).flatten()

    @cached_property
    def flat(self) -> Tensor:
        """[requests * n] the tokens, flattened."""
        return self.tokens.flatten().long()


def loosely(rule: Rule, seen: Judged) -> Tensor:
    """Return which nodes the rule keeps whatever speculative sampling says: bool [requests, n]."""
    loose = rule.keeps(seen).view_as(seen.parents)
    # a grammar or a bias may have excluded a token entirely
    possible = seen.logits[seen.rows, seen.flat] > -torch.inf
    return loose & possible.view_as(loose) & (seen.parents >= 0)
