"""Settle everything that a command line leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semspec.choices.choice import Choice
from semspec.choices.engine import choose_engine, with_engine
from semspec.choices.names import full_names
from semspec.choices.nested import choose_nested, with_nested
from semspec.choices.rule import choose_rule, with_rule


@dataclass(frozen=True, slots=True)
class Settled:
    """A complete command line, and what was chosen for it."""

    arguments: list[str]
    engine: Choice | None  # None: one was named
    rule: Choice | None  # None: one was named
    nested: Choice | None  # None: an option concerns it, or it is of no use here

    def choices(self) -> list[Choice]:
        """List what was chosen."""
        return [one for one in (self.engine, self.rule, self.nested) if one is not None]


def settle(
    arguments: Sequence[str], auto: bool = True, brought: bool = False, helped: bool = False
) -> Settled:
    """Choose the engine and the rule if they are open, and give every option its full name.

    ``auto``: choose the engine if none is named; otherwise it is the default of conf/config.yaml. ``brought``: where no
    plugin is chosen here, use the one that the targets' presets will bring. ``helped``: add nested drafts and salvage
    to rules for steps, unless an option concerns them.
    """
    engine = choose_engine(arguments, unless_named=auto)
    on_engine = with_engine(arguments, engine)
    rule = choose_rule(on_engine)
    by_rule = with_rule(on_engine, rule)
    nested = choose_nested(by_rule, brought) if helped else None
    return Settled(full_names(with_nested(by_rule, nested), brought), engine, rule, nested)


def expand_shorthands(
    arguments: Sequence[str], auto: bool = True, brought: bool = False
) -> list[str]:
    """Return the arguments that ``settle`` makes of a command line."""
    return settle(arguments, auto, brought).arguments
