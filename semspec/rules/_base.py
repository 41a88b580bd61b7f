"""What a rule is unless it says otherwise: the defaults of ``protocols.Rule``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

from semspec.models.location import ModelConfig, ModelFacts
from semspec.types import Read, Role, Sampling, What


class RuleBase:
    """Defaults; a rule overrides what is different."""

    needs: ClassVar[frozenset[What]] = frozenset()
    cuts: ClassVar[Literal["tokens", "ends"]] = "ends"
    splits: ClassVar[frozenset[str] | None] = None
    trees: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    salvages: ClassVar[bool] = True
    reserve: ClassVar[int] = 0
    lossless: ClassVar[bool] = False
    greedy_only: ClassVar[bool] = False

    def models(self) -> Mapping[Role, ModelConfig]:
        """Models of its own, beside target and draft."""
        return {}

    def prepare(self, models: Mapping[Role, ModelFacts], split: str, temperature: float) -> Any:
        """Loads what it was trained with and refuses what does not belong to these models."""
        return self

    def hold(self, sampling: Sampling, drafts: str) -> None:
        """Refuses a run that the rule's guarantee, if it gives one, was not measured for."""

    def asked(self) -> Mapping[str, float]:
        """What of accepted steps may be wrong at most, where that was asked: see ``truth``."""
        return {}

    def places(
        self, models: Mapping[Role, ModelFacts], split: str
    ) -> Mapping[Role, tuple[str, str | None]]:
        """By role, the probe that its engine may hold: where it is, and its revision."""
        return {}

    def on(self, offers: Mapping[Role, Collection[What]]) -> Any:
        """The prepared rule, reading what these engines offer."""
        return self

    def evidence(self) -> tuple[Read, ...]:
        return ()
