"""Medusa: heads on the target's last hidden state guess several tokens at once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from semspec.drafters._base import DrafterBase, DraftSessionBase
from semspec.heads.medusa import Medusa
from semspec.models import ModelConfig
from semspec.protocols import Kit, Plan
from semspec.registry import register
from semspec.sampling import draw_next, probabilities
from semspec.types import Answer, Context, Draft, Query, Read, Room, Seen, What

LAST = Read(What.HIDDEN, layers=(-1,))


@register("drafter", "medusa")
@dataclass(frozen=True, kw_only=True)
class MedusaDrafter(DrafterBase):
    """Medusa: heads on the target's last hidden state, each for a token further on."""

    head: ModelConfig = field(default_factory=lambda: ModelConfig(path="embedded/medusa-tiny"))

    needs: ClassVar[frozenset[What]] = frozenset({What.HIDDEN})

    def prepare(self, target: Path) -> MedusaDrafter:
        options = {f.name: getattr(self, f.name) for f in fields(MedusaDrafter)}
        return _Loaded(**options, heads=Medusa.load(self.head.fetch(), target))

    def open(self, kit: Kit) -> MedusaSession:
        raise AssertionError("prepare() comes first")


@dataclass(frozen=True, kw_only=True)
class _Loaded(MedusaDrafter):
    heads: Medusa

    def open(self, kit: Kit) -> MedusaSession:
        return MedusaSession(kit, self.heads)


class MedusaSession(DraftSessionBase):
    """Keeps the last state that it saw: that of the last token but one, which the target has read."""

    watches = (LAST,)

    def __init__(self, kit: Kit, heads: Medusa) -> None:
        self.kit, self.heads = kit, heads
        self.seen = Seen(0, 0, {})

    def see(self, seen: Seen) -> None:
        self.seen = seen

    def draft(self, context: Context, room: Room) -> Plan[Draft]:
        at = len(context) - 2  # its heads guess from the token after the last one on
        if at < 0:
            return Draft()
        if not self.seen.start <= at < self.seen.start + self.seen.count:
            kit = self.kit
            answer: Answer = yield Query(
                "target", context, kit.sampling, kit.rng, reads=(LAST,), rows_from=at
            )
            self.seen = Seen(at, 2, answer.values)
        state = self.seen.values[LAST][at - self.seen.start]
        with torch.inference_mode():
            self.heads = self.heads.on(state.device)
            return self._chain(self.heads.logits(state)[:, 0], room)

    def _chain(self, logits: Tensor, room: Room) -> Draft:
        kit = self.kit
        rows = probabilities(logits, kit.sampling)
        tokens: list[int] = []
        ends: list[int] = []
        boundary = kit.boundary()
        for row in rows[: room.limit]:
            tokens.append(draw_next(row, kit.sampling, kit.rng))
            end = boundary.feed(tokens[-1])
            if end is not None:
                ends.append(len(tokens) + end)
            if len(ends) >= room.units or tokens[-1] in kit.stop_ids:
                break
        if len(ends) < room.units and (not ends or ends[-1] < len(tokens)):
            ends.append(len(tokens))  # what was left open counts as a unit
        # greedy tokens were not sampled: point masses
        return Draft(tokens, ends, probs=None if kit.sampling.greedy else rows[: len(tokens)])
