"""The plugins of a run together, so that each can refuse what it cannot work with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from semspec import registry
from semspec.errors import UserError
from semspec.protocols.drafter import Drafter
from semspec.protocols.engine import EngineOptions
from semspec.protocols.rule import Rule
from semspec.types import Role, Sampling


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A drafter, its rule and the engine, as a configuration combines them; no model is loaded yet.

    A run has two: its own pair, and the nested pair that helps the target write.
    """

    drafter: Drafter
    rule: Rule
    engine: EngineOptions
    split: str
    sampling: Sampling
    salvage: bool = False
    ahead: bool = False
    nested: bool = False

    @property
    def draft_option(self) -> str:
        """The option that chooses the drafter."""
        return "nested" if self.nested else "draft"

    @property
    def accept_option(self) -> str:
        """The option that chooses the rule."""
        return "nested_accept" if self.nested else "accept"

    @property
    def drafter_choice(self) -> str:
        """The drafter as on the command line: ``draft=lm``."""
        return f"{self.draft_option}={registry.name_of(self.drafter)}"

    @property
    def rule_choice(self) -> str:
        """The rule as on the command line: ``accept=lossless``."""
        return f"{self.accept_option}={registry.name_of(self.rule)}"

    @property
    def engine_choice(self) -> str:
        """The engine as on the command line: ``engine=hf``."""
        return f"engine={registry.name_of(self.engine)}"

    def check_models(self, choice: str, models: Collection[Role], others: str) -> None:
        """Raise UserError if the engine cannot run the models that a plugin brings along."""
        roles = self.engine.roles
        if roles is not None and (missing := sorted(set(models) - roles)):
            raise UserError(
                f"{choice} needs a model of its own ({', '.join(missing)}), which"
                f" {self.engine_choice} cannot run: use engine=hf, or another {others}"
            )
