"""Session for rules that judge token by token: one pass, one walk, one token written.

A rule says what it reads and which nodes of the draft it accepts; chains and trees work the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from semspec.decoding.acceptance import (
    Shape,
    lossless_nodes,
    lossless_path,
    remaining,
    shape_of,
    walk,
)
from semspec.decoding.sampling import chances, draw_next, uniforms
from semspec.deferred import Tensor, torch
from semspec.protocols import Kit, Plan
from semspec.rules._base import RuleBase
from semspec.types import PROBS, Answer, Context, Draft, Query, Read, Verdict, What


class TokenRule(RuleBase):
    """A rule that keeps single tokens, of chains and of trees."""

    needs: ClassVar[frozenset[What]] = frozenset({What.PROBS})
    cuts: ClassVar[Literal["tokens", "ends"]] = "tokens"
    trees: ClassVar[bool] = True

    def evidence(self) -> tuple[Read, ...]:
        return (PROBS,)  # q, for drafts that were sampled


@dataclass
class Scored:
    """A draft and the answer of the target's pass over it."""

    draft: Draft
    answer: Answer
    shape: Shape  # on the device of the answer's rows, like ``tokens``

    @cached_property
    def tokens(self) -> Tensor:
        """Return the drafted tokens [nodes]; made on first use, since many verdicts need none."""
        return torch.tensor(self.draft.tokens, dtype=torch.long, device=self.shape.device)


class TokenSession:
    """Asks for the pass over a draft, walks the draft, and writes the token after the accepted path."""

    reads: tuple[Read, ...] = (PROBS,)

    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    def ponder(self, context: Context, scored: Scored) -> Plan[None]:
        """Ask further questions after the pass."""
        yield from ()

    def accepted(self, context: Context, scored: Scored) -> Tensor:
        """Return which nodes are accepted if the walk reaches them: bool [nodes]."""
        raise NotImplementedError

    def path(self, context: Context, scored: Scored) -> list[int]:
        """Return the accepted nodes from the root on."""
        accepted = self.accepted(context, scored)
        return walk(accepted, scored.shape, scored.draft.tokens, self.kit.stop_ids)

    def following(self, scored: Scored, path: list[int]) -> int:
        """Return the token to write after the path, where every child was rejected."""
        raise NotImplementedError

    def judge(self, context: Context, draft: Draft) -> Plan[Verdict]:
        kit = self.kit
        answer: Answer = yield Query(
            "target",
            context,
            kit.sampling,
            kit.rng,
            tokens=draft.tokens,
            parents=draft.parents,
            reads=self.reads,
        )
        rows = answer[self.reads[0]]
        device = (rows[0] if isinstance(rows, tuple) else rows).device
        shape = shape_of(draft.parents, len(draft.tokens), device)
        scored = Scored(draft, answer, shape)
        yield from self.ponder(context, scored)
        path = self.path(context, scored)
        nodes = None if draft.parents is None else path
        if path and draft.tokens[path[-1]] in kit.stop_ids:
            return Verdict(len(path), path=nodes)  # nothing follows an end of text
        return Verdict(len(path), [self.following(scored, path)], path=nodes)


class LosslessSession(TokenSession):
    """Speculative sampling; looser rules accept more nodes and leave the rest to it.

    They draw exactly as many random numbers as it does.
    """

    def path(self, context: Context, scored: Scored) -> list[int]:
        draft, p, kit = scored.draft, scored.answer[PROBS], self.kit
        if p.device.type != "cpu" or (draft.probs is not None and draft.probs.device != p.device):
            return super().path(context, scored)
        drawn = chances(len(draft.tokens), kit.sampling, kit.rng)
        loose = self.loosely(context, scored)
        flags = None if loose is None else loose.tolist()
        shape, stops = scored.shape, kit.stop_ids
        return lossless_path(p, draft.tokens, shape, draft.probs, drawn, stops, flags)

    def accepted(self, context: Context, scored: Scored) -> Tensor:
        kit, draft, p = self.kit, scored.draft, scored.answer[PROBS]
        chances = uniforms(len(draft.tokens), kit.sampling, kit.rng, p.device)
        sure = lossless_nodes(p, scored.tokens, scored.shape, draft.probs, chances)
        loose = self.loosely(context, scored)
        return sure if loose is None else sure | loose

    def loosely(self, context: Context, scored: Scored) -> Tensor | None:
        """Return the nodes that the rule accepts whatever speculative sampling says of them.

        All other nodes go through the lossless rule, with the same random numbers.
        """
        return None

    def following(self, scored: Scored, path: list[int]) -> int:
        p, q = scored.answer[PROBS], scored.draft.probs
        row = remaining(p, scored.draft.tokens, scored.shape, q, path)
        return draw_next(row, self.kit.sampling, self.kit.rng)
