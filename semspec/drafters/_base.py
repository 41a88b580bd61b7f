"""What a drafter is unless it says otherwise: the defaults of ``protocols.Drafter``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from semspec.models.location import ModelFacts
from semspec.types import Context, Read, Role, Round, Seen, What


class DrafterBase:
    """Defaults; a drafter overrides what is different."""

    uses: ClassVar[frozenset[Role]] = frozenset()
    plain: ClassVar[bool] = False
    ahead: ClassVar[bool] = False
    rows: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[What]:
        """What it reads from the target; a class variable where options do not change it."""
        return frozenset()

    @property
    def levels(self) -> int:
        """Levels of its trees at most; 0: it drafts chains, as long as ``draft_length`` says."""
        return 0

    def prepare(self, target: Path) -> Any:
        """Loads what it was trained with and refuses what does not belong to this target."""
        return self

    def bind(self, models: Mapping[Role, ModelFacts]) -> Any:
        """Opens what it copies from beside the context and refuses what is not of these models."""
        return self

    @property
    def reach(self) -> int:
        """Tokens that it drafts at a time where tokens are the unit; 0: as ``draft_length`` says."""
        return self.levels


class DraftSessionBase:
    """A session that watches nothing and learns nothing."""

    watches: tuple[Read, ...] = ()

    def see(self, seen: Seen) -> None:
        """Rows of the target's passes; comes only where ``watches`` asks for some."""

    def observe(self, context: Context, done: Round) -> None:
        """What became of the draft."""
