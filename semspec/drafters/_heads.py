"""The session of drafters with heads on the target: from rows to a chain or a tree."""

from __future__ import annotations

from collections.abc import Sequence

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
    """A session that computes its rows by itself."""

    longest: int | None = None  # tokens of a chain that it can draft; None: any number

    def __init__(self, kit: Kit, options: TreeOptions) -> None:
        self.kit, self.options = kit, options

    def rows(
        self, tokens: Sequence[int], parents: Sequence[int], count: int, sampling: Sampling
    ) -> Tensor:
        """Probabilities [count, vocabulary] of what follows the last ``count`` of these nodes.

        Without tokens, of what follows the context. The nodes before those were given before.
        """
        raise NotImplementedError

    def likeliest(self, tokens: Sequence[int], parents: Sequence[int]) -> int:
        """Return the most probable token after the last of these nodes, as ``rows`` is asked for it."""
        return int(self.rows(tokens, parents, 1, Sampling(0.0))[0].argmax())

    def drafted(self, room: Room) -> Draft:
        """Called once the session has followed the context to its end."""
        with torch.inference_mode():
            if room.chain or not self.options.levels:
                return self._chain(room)
            sampling = tree_sampling(self.kit.sampling)
            tree = self.options.seed(self.kit, room)
            while tree.open:
                tree.grow(self.rows(*tree.reading(), len(tree.open), sampling))
            return self.options.finished(tree, self.kit)

    def _chain(self, room: Room) -> Draft:
        kit = self.kit
        draft, rows, boundary = Draft(), [], kit.boundary()
        limit = room.limit if self.longest is None else min(room.limit, self.longest)
        while True:
            count = len(draft.tokens)
            so_far = draft.tokens, range(-1, count - 1)
            if kit.sampling.greedy:
                token = self.likeliest(*so_far)
            else:
                rows.append(self.rows(*so_far, 1, kit.sampling))
                token = draw_next(rows[-1][0], kit.sampling, kit.rng)
            draft.tokens.append(token)
            if (end := boundary.feed(token)) is not None:
                draft.ends.append(count + 1 + end)
            if count + 1 == limit or len(draft.ends) == room.units or token in kit.stop_ids:
                break
        if len(draft.ends) < room.units and (not draft.ends or draft.ends[-1] <= count):
            draft.ends.append(count + 1)  # what was left open counts as a unit
        if not kit.sampling.greedy:  # greedy tokens were not sampled: point masses
            draft.probs = torch.cat(rows)
            draft.evidence = {PROBS: draft.probs}
        return draft
