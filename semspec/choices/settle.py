"""Everything that a command line leaves open, settled in one go."""

from __future__ import annotations

from collections.abc import Sequence

from semspec.choices.engine import choose_engine, with_engine
from semspec.choices.names import full_names
from semspec.choices.rule import with_rule


def expand_shorthands(
    arguments: Sequence[str], auto: bool = True, brought: bool = False
) -> list[str]:
    """Settle what is left to us, the engine and the rule, and give every option its full name.

    ``auto`` is False where the default of conf/config.yaml is the engine unless one is named. ``brought``: of plugins
    that are not chosen here, those count that the targets' presets will bring.
    """
    choice = choose_engine(arguments, unless_named=auto)
    return full_names(with_rule(with_engine(arguments, choice)), brought)
