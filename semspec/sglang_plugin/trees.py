"""Draft trees as SGLang verifies them, many at once: pure tensor functions, no loop over requests.

A request's tree has n nodes; node 0 is its last token, and parents come before their children.
``next_token`` [requests, n] is the first child of each node and ``next_sibling`` its next sibling, -1 for
none; siblings are tried in this order, which is the order of their indices. Row i of the target's logits
follows node i, so the row of its parent judges a node. No function here waits for a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def parents_of(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """Return the parent of every node, [requests, n]; -1 for the root and for detached nodes."""
    count, n = next_token.shape
    device = next_token.device
    own = torch.arange(n, device=device).expand(count, n)

    def inverse(links: Tensor, otherwise: Tensor) -> Tensor:
        """Return the node that links to each node; ``otherwise`` [requests, n] if none does."""
        spill = otherwise.new_full((count, 1), -1)  # extra column that collects links of -1
        found = torch.cat([otherwise, spill], 1)
        return found.scatter(1, torch.where(links < 0, n, links).long(), own)[:, :n]

    eldest = inverse(next_sibling, own)  # the previous sibling; the eldest maps to itself
    for _ in range(n.bit_length()):  # pointer doubling, until all map to the eldest
        eldest = eldest.gather(1, eldest)
    above = inverse(next_token, torch.full_like(own, -1))  # known for the eldest siblings only
    return above.gather(1, eldest)


def elder_siblings(parents: Tensor) -> Tensor:
    """Return [requests, n, n] bool: node j is an elder sibling of node i."""
    return (parents[:, :, None] == parents[:, None, :]).tril(-1) & (parents >= 0)[:, :, None]


def first_accepted(loose: Tensor, sure: Tensor, parents: Tensor) -> Tensor:
    """Return the child that must follow each row: [requests, n], -1 where SGLang's verification decides.

    ``loose``: nodes that a rule keeps. ``sure``: nodes that speculative sampling keeps. Among siblings of
    which the rule keeps any, the first one that either keeps must follow, as in a walk in order.
    """
    n = parents.shape[1]
    above = parents.clamp_min(0)
    hangs = parents >= 0
    own = torch.arange(n, device=parents.device).expand_as(parents)
    kept = torch.where((loose | sure) & hangs, own, n)
    first = torch.full_like(parents, n).scatter_reduce(1, above, kept, "amin")
    asked = torch.zeros_like(parents).scatter_reduce(1, above, (loose & hangs).long(), "amax")
    return torch.where((asked > 0) & (first < n), first, -1)


def only(logits: Tensor, tokens: Tensor, follows: Tensor) -> Tensor:
    """Return ``logits`` [requests * n, vocabulary] edited to force the token of each node that must follow.

    A forced row has a logit of 0 for that token and -inf elsewhere, so the token is the argmax, and the only
    one possible at any temperature, top-k and top-p.
    """
    decided = (follows >= 0).flatten()[:, None]
    token = tokens.gather(1, follows.clamp_min(0)).flatten()[:, None].long()
    edited = logits.masked_fill(decided, -torch.inf)
    own = edited.gather(1, token)
    return edited.scatter_(1, token, torch.where(decided, torch.zeros_like(own), own))


def written(logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Return ``logits`` with these rows forced to one token each, as in ``only``."""
    edited = logits.clone()
    edited[rows] = -torch.inf
    edited[rows, tokens] = 0.0
    return edited
