"""Speculative sampling: whatever was drafted, what comes out has exactly the target's law."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from semspec.decoding.acceptance import lossless_path
from semspec.decoding.sampling import chances
from semspec.protocols import InServer, Kit
from semspec.registry import register
from semspec.rules._tokens import LosslessSession, Scored, TokenRule
from semspec.types import PROBS, Context


@register("accept", "lossless")
@dataclass(frozen=True, kw_only=True)
class Lossless(TokenRule):
    """Speculative sampling (Leviathan 2023): exactly the target's law, token by token."""

    lossless: ClassVar[bool] = True
    in_server: ClassVar[InServer | None] = InServer()

    @classmethod
    def default_for(cls, target: str, split: str, given: Collection[str]) -> tuple[int, str] | None:
        return 1, "it leaves the target's law as it is"

    def open(self, kit: Kit) -> LosslessSession:
        return PlainSession(kit)


class PlainSession(LosslessSession):
    """The lossless rule by itself; draws nothing more and nothing less than the rules that loosen it."""

    def path(self, context: Context, scored: Scored) -> list[int]:
        draft, p, kit = scored.draft, scored.answer[PROBS], self.kit
        if p.device.type != "cpu" or (draft.probs is not None and draft.probs.device != p.device):
            return super().path(context, scored)
        drawn = chances(len(draft.tokens), kit.sampling, kit.rng)
        return lossless_path(p, draft.tokens, scored.shape, draft.probs, drawn, kit.stop_ids)
