"""What all kinds of plugins share; the package's docstring tells their life in order."""

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
    """The facts of a run that plugins are bound to."""

    models: Mapping[Role, ModelFacts]
    split: str
    sampling: Sampling
    # of the models, maybe without weights
    folders: Mapping[Role, Path] = field(default_factory=dict)
    offers: Collection[What] = ()  # what the engine can read
    rule: str = ""  # that decides about drafts, by name
    # the model that draws the drafts, or the name of a drafter without one; None: nothing is drafted,
    # and nothing that was promised about drafts has to hold
    drafts: str | None = None
    max_new_tokens: int | None = None  # of an answer with its thinking; None: not known
    given: Mapping[Role, ModelConfig] = field(default_factory=dict)  # where its models are
    fetch: Callable[[Role], Path] | None = None  # weights, if they are not in ``folders``

    @property
    def places(self) -> Mapping[Role, ModelConfig]:
        """Where its models are, as commands name them."""
        return self.given or {
            role: ModelConfig(path=facts.name, revision=facts.revision)
            for role, facts in self.models.items()
        }

    def weights(self, role: Role) -> Path:
        """Return a model's folder with its weights: the one thing in ``bind`` that may take hours."""
        return self.folders[role] if self.fetch is None else self.fetch(role)


@dataclass(frozen=True, slots=True)
class Source:
    """Where something is that a plugin loads: a folder, ``embedded/NAME`` or ``owner/name``."""

    what: str
    place: str
    revision: str | None
    wanted: Wanted  # the files that are loaded of it
    first: str | None = None  # the command that has to be run before it can be loaded


class Plugin(Protocol):
    """The life that all kinds of plugins share; a plugin overrides what it needs."""

    def check_setup(self, setup: Setup) -> None:
        """Raise UserError, with a way out, if it cannot work in this configuration."""
        return

    def loads(self, run: Run) -> Sequence[Source]:
        """Return what ``bind`` is going to load; raise UserError, with the next command, where it is not known."""
        return ()

    def bind(self, run: Run) -> Self:
        """Return the plugin with everything that it was trained with; see ``bound``."""
        return self

    def bound(self, **found: Any) -> Self:
        """Return a copy that carries what ``bind`` found.

        A plugin declares these attributes as ``ClassVar``, so that they are no options.
        """
        made = copy.copy(self)
        for name, value in found.items():
            object.__setattr__(made, name, value)  # frozen: its options are, for the whole run
        return made

    @classmethod
    def example(cls, folder: Path) -> Iterator[Self]:
        """Yield plugins that do something on small models, for the contract tests.

        They get a target and a draft like ``models.location.EXAMPLE``, with ``EXAMPLE_VOCABULARY``
        tokens; artifacts of a plugin's own are saved below ``folder``, which is empty.
        """
        yield cls()
