"""The session of one context: which tokens its slot of the cache holds."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.decoding.trim import along, shared
from semspec.engines._lean.cache import Cache
from semspec.types import Context


class Session:
    """The cache holds ``tokens``; the first ``verified`` of them are known to match the context.

    Queries added the tokens after those, as a chain or (from ``root`` on) a tree. A context only ever
    grows, so tokens before ``verified`` are not compared again.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.tokens: list[int] = []
        self.slot, self.verified, self.root = -1, 0, 0
        self.parents: list[int] | None = None

    def match(self, context: Context, then: Sequence[int], cache: Cache) -> int:
        """Return how many tokens of the context and ``then`` are cached; move those of a tree path into place."""
        if context is not self.context or len(context) < self.verified:
            self.context, self.verified = context, 0  # another object for the context: compare once
        start = self.verified
        new = [*context.tokens[start:], *then]
        chain = len(self.tokens) if self.parents is None else self.root
        same = shared(self.tokens[start:chain], new)
        if self.parents is None or start + same < self.root:
            self.verified = min(len(context), start + same)
            return start + same
        path = along(self.tokens[self.root :], self.parents, new[same:])
        # the other nodes of the path are in place
        moved = [(at, node) for at, node in enumerate(path) if node != at]
        if moved:
            cache.gather(self, self.root + moved[0][0], [self.root + node for _, node in moved])
        self.tokens[self.root :] = new[same : same + len(path)]
        self.parents = None
        self.verified = min(len(context), len(self.tokens))
        return len(self.tokens)

    def match_tree(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], cache: Cache
    ) -> int:
        """Return how many tokens of the context and the tree are cached, also if the cached tree has only grown."""
        known = context is self.context and self.verified == self.root == len(context)
        if self.parents is None or not known:
            return self.match(context, [], cache)
        own, count = self.tokens[self.root :], len(self.parents)
        if own == tokens[:count] and self.parents == parents[:count]:
            return self.root + count
        cached = zip(own, self.parents, strict=True)
        return self.root + shared(cached, zip(tokens, parents, strict=True))

    def crop(self, length: int) -> None:
        """Drop the cached tokens from index ``length`` on."""
        del self.tokens[length:]
        self.verified = min(self.verified, length)
        if self.parents is not None:
            self.parents = self.parents[: length - self.root] if length > self.root else None

    def fed(self, tokens: Sequence[int]) -> None:
        """Record tokens that were fed after the cached ones."""
        self.tokens.extend(tokens)
        self.verified = min(len(self.context), len(self.tokens))

    def grown(self, root: int, parents: Sequence[int]) -> None:
        """Record that the cached tokens from ``root`` on are the first nodes of this tree."""
        self.root, self.parents = root, list(parents[: len(self.tokens) - root])
