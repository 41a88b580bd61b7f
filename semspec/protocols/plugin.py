"""What all kinds of plugins share; the package's docstring describes their life cycle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from semspec.models.location import ModelConfig, ModelFacts
from semspec.models.wanted import Wanted
from semspec.types import Role, Sampling, What

if TYPE_CHECKING:
    from semspec.protocols.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Run:
    """The facts of a run to which plugins are bound."""

    models: Mapping[Role, ModelFacts]
    split: str
    sampling: Sampling
    # the models' folders, perhaps without weights
    folders: Mapping[Role, Path] = field(default_factory=dict)
    offers: Collection[What] = ()  # what the engine can read
    rule: str = ""  # name of the rule that judges drafts
    # the model that samples the drafts, or the name of a drafter without one; None: nothing is drafted, so
    # guarantees about drafts need not hold
    drafts: str | None = None
    max_new_tokens: int | None = None  # of an answer with its thinking; None: not known
    given: Mapping[Role, ModelConfig] = field(default_factory=dict)  # where the models are
    fetch: Callable[[Role], Path] | None = None  # fetches weights that are not in ``folders``

    @property
    def places(self) -> Mapping[Role, ModelConfig]:
        """Where the models are, as commands name them."""
        return self.given or {
            role: ModelConfig(path=facts.name, revision=facts.revision)
            for role, facts in self.models.items()
        }

    def weights(self, role: Role) -> Path:
        """Return a model's folder with its weights; the only call in ``bind`` that may take hours."""
        return self.folders[role] if self.fetch is None else self.fetch(role)


@dataclass(frozen=True, slots=True)
class Source:
    """Where to find something that a plugin loads: a folder, ``embedded/NAME`` or ``owner/name``."""

    what: str
    place: str
    revision: str | None
    wanted: Wanted  # the files that are loaded from it
    first: str | None = None  # a command that has to be run before it can be loaded


class Plugin(Protocol):
    """The life cycle that all kinds of plugins share; a plugin overrides what it needs."""

    def check_setup(self, setup: Setup) -> None:
        """Raise UserError, with a remedy, if it cannot work in this configuration."""
        return

    def loads(self, run: Run) -> Sequence[Source]:
        """Return what ``bind`` will load; raise UserError, with the next command, if it is not known."""
        return ()

    def bind(self, run: Run) -> Self:
        """Return the plugin with everything it was trained with; see ``bound``."""
        return self

    def bound(self, **found: Any) -> Self:
        """Return a copy that carries what ``bind`` found.

        A plugin declares these attributes as ``ClassVar``, so that they are not options.
        """
        made = copy.copy(self)
        for name, value in found.items():
            object.__setattr__(made, name, value)  # only the options have to stay frozen
        return made

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        """Yield plugins that have an effect on small models, for the contract tests.

        They get a target and a draft like ``models.location.EXAMPLE``, with ``EXAMPLE_VOCABULARY`` tokens. A plugin's own
        artifacts are saved in ``folder``, which is empty.
        """
        yield cls()
