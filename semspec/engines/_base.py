"""What an engine's configuration is unless it says otherwise."""

from __future__ import annotations

from typing import ClassVar, get_args

from semspec.types import Role, What


class EngineBase:
    """Defaults: everything runs in this process, any role, from weights in a folder."""

    offers: ClassVar[frozenset[What]]  # what can be read
    roles: ClassVar[frozenset[str]] = frozenset(get_args(Role))  # the models that it can run
    may_change: ClassVar[tuple[str, ...]] = ()  # options that may differ when a run goes on

    @property
    def holds_weights(self) -> bool:
        """Whether it loads weights here; without it a model's folder need not have them."""
        return True
