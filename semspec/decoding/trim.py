"""Shorten drafts to what can still be committed, before a model reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import Any

from semspec.decoding.thinking import Thinking
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.types import Draft


def depths(parents: Sequence[int]) -> list[int]:
    """Return every node's depth, 1 below the context; raise UserError if a parent follows its child."""
    found: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise UserError(f"node {node} of a tree has parent {parent}: parents come first")
        found.append(1 if parent == -1 else found[parent] + 1)
    return found


def shared(first: Iterable[Any], second: Iterable[Any]) -> int:
    """Count the leading items in which two sequences agree."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def along(tokens: Sequence[int], parents: Sequence[int], way: Sequence[int]) -> list[int]:
    """Return the nodes of a tree along the tokens ``way``, from the root; the first of duplicates."""
    path: list[int] = []
    ahead = iter(way)
    at, wanted = -1, next(ahead, None)
    # children come after their parents, so one pass is enough
    for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        if parent == at and token == wanted:
            path.append(node)
            at, wanted = node, next(ahead, None)
            if wanted is None:
                break
    return path


def first_path(parents: Sequence[int]) -> list[int]:
    """Return the nodes along first children, from the root."""
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):  # the first after it: parents come first
            path.append(node)
    return path


def trim(
    draft: Draft, left: int, stop_ids: Collection[int], thinking: Thinking | None = None
) -> None:
    """Drop what follows an end of text, or with ``thinking`` what follows the unit that ends the thinking.

    A tree also loses nodes deeper than the ``left`` tokens that may still be written; a chain already respects
    ``Room``. Whole families of siblings stay or go by their ancestors alone, so siblings keep the distribution
    they were drawn from.
    """
    if draft.parents is not None:
        _trim_tree(draft, left, stop_ids, thinking)
        return
    assert len(draft.tokens) <= left, "a drafter proposed more tokens than there was room for"
    stop = next((i + 1 for i, token in enumerate(draft.tokens) if token in stop_ids), None)
    if stop is not None:
        shorten(draft, stop)
    at = thinking.closes_at(draft.tokens) if thinking is not None else None
    if at is not None:
        shorten(draft, next((end for end in draft.ends if end >= at), len(draft.tokens)))


def shorten(draft: Draft, length: int) -> None:
    """Shorten a chain to its first ``length`` tokens."""
    if length == len(draft.tokens):
        return
    draft.tokens, draft.halted = draft.tokens[:length], False
    draft.ends = [end for end in draft.ends if end < length] + [length] * (length > 0)
    draft.origins, draft.likely = draft.origins[:length], draft.likely[:length]
    if draft.probs is not None:
        draft.probs = draft.probs[:length]


def _trim_tree(
    draft: Draft, left: int, stop_ids: Collection[int], thinking: Thinking | None
) -> None:
    tokens, parents = draft.tokens, draft.parents or []
    if thinking is None and len(tokens) <= left and not any(token in stop_ids for token in tokens):
        return  # nothing ends, and no path can be too long
    depth = depths(parents)
    closed = thinking.closed_before(tokens, parents) if thinking is not None else None
    stays = {-1: None}  # nodes, as an ordered set
    for node, parent in enumerate(parents):
        over = parent >= 0 and tokens[parent] in stop_ids
        over |= depth[node] > left or (closed is not None and closed[node])
        if parent in stays and not over:
            stays[node] = None
    if len(stays) <= len(tokens):
        keep_nodes(draft, list(stays)[1:])


def keep_nodes(draft: Draft, nodes: Sequence[int]) -> None:
    """Keep only ``nodes`` of a tree, given in ascending order with all their ancestors."""
    parents = draft.parents
    assert parents is not None
    count = len(draft.tokens)
    number = {-1: -1} | {node: i for i, node in enumerate(nodes)}
    draft.tokens = [draft.tokens[node] for node in nodes]
    draft.parents = [number[parents[node]] for node in nodes]
    draft.ends = list(range(1, len(nodes) + 1))
    if draft.origins:
        draft.origins = [draft.origins[node] for node in nodes]
    if draft.likely:
        draft.likely = [draft.likely[node] for node in nodes]
    if draft.probs is not None:
        draft.probs = draft.probs[nodes]
    draft.evidence = {
        read: value[nodes] if isinstance(value, torch.Tensor) and len(value) == count else value
        for read, value in draft.evidence.items()
    }
