"""Session for drafters with heads on the target: turns rows into a chain or a tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.sampling import draw_next
from semspec.deferred import Tensor, torch
from semspec.drafters._base import DraftSessionBase
from semspec.drafters._trees import TreeOptions, tree_sampling
from semspec.heads.published import needs_conversion
from semspec.models.location import ModelConfig
from semspec.models.wanted import MODEL
from semspec.protocols import Kit, Source
from semspec.types import PROBS, Draft, Room, Sampling


def head_sources(head: ModelConfig) -> list[Source]:
    """Return where a head is, and the command that converts it if it is pickled."""
    first = needs_conversion(head.path, head.revision)
    return [Source("head", head.path, head.revision, MODEL, first)]


class HeadSession(DraftSessionBase):
    """A session that computes its own rows, over the whole vocabulary or over the tokens that it can draft."""

    longest: int | None = None  # most tokens of a chain; None: any number
    names: NDArray[np.int64] | None = None  # the token of each column, ascending; None: all

    def __init__(self, kit: Kit, options: TreeOptions) -> None:
        self.kit, self.options = kit, options

    def rows(self, tokens: Sequence[int], parents: Sequence[int], sampling: Sampling) -> Tensor:
        """Return probabilities [n, columns] of what follows n new nodes, all of one level.

        Without tokens, [1, columns] of what follows the context. ``parents`` are indices in the order in which nodes
        were given.
        """
        raise NotImplementedError

    def likeliest(self, tokens: Sequence[int], parents: Sequence[int]) -> int:
        """Return the most probable token after one new node; arguments as for ``rows``."""
        return int(self.rows(tokens, parents, Sampling(0.0))[0].argmax())

    def whole(self, rows: Tensor) -> Tensor:
        """Spread rows over the whole vocabulary."""
        return rows

    def drafted(self, room: Room) -> Draft:
        """Return a draft; call it once the session has followed the context to its end, in torch's inference mode."""
        if room.chain or not self.options.levels:
            return self._chain(room)
        sampling = tree_sampling(self.kit.sampling)
        tree = self.options.seed(self.kit, room, self.names)
        while tree.open:
            tree.grow(self.rows(*tree.opened(), sampling))
        draft = self.options.finished(tree, self.kit)
        if (rows := draft.evidence.get(PROBS)) is not None:
            self._give(draft, rows, sampled=draft.probs is not None)
        return draft

    def _give(self, draft: Draft, rows: Tensor, sampled: bool) -> None:
        """Attach the rows that the draft's tokens were chosen or drawn from."""
        whole = self.whole(rows)
        draft.evidence = {PROBS: whole}
        draft.probs = whole if sampled else None

    def _chain(self, room: Room) -> Draft:
        kit = self.kit
        draft, rows, boundary = Draft(), [], kit.boundary()
        limit = room.limit if self.longest is None else min(room.limit, self.longest)
        while True:
            count = len(draft.tokens)
            last = draft.tokens[-1:], [count - 2] * (count > 0)
            if kit.sampling.greedy:
                token = self.likeliest(*last)
            else:
                rows.append(self.rows(*last, kit.sampling))
                token = draw_next(rows[-1][0], kit.sampling, kit.rng)
                token = token if self.names is None else int(self.names[token])
            draft.tokens.append(token)
            if (end := boundary.feed(token)) is not None:
                draft.ends.append(count + 1 + end)
            if count + 1 == limit or len(draft.ends) == room.units or token in kit.stop_ids:
                break
        if len(draft.ends) < room.units and (not draft.ends or draft.ends[-1] <= count):
            draft.ends.append(count + 1)  # an open end counts as a unit
        if not kit.sampling.greedy:  # greedy tokens were not sampled: they are point masses
            self._give(draft, torch.cat(rows), sampled=True)
        return draft
