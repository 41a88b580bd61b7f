"""Where models are: a folder, a Hub repository, or shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from semspec.hub import locate

PACKAGE = Path(__file__).parent
EMBEDDED = "embedded/"  # what is shipped with the package: ``path: embedded/tiny-target``


def beside_package(name: str) -> Path:
    """A top-level folder: inside the package where it is installed, beside it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which weights: a folder, a Hub repository, or one of the embedded models."""

    path: str = MISSING
    revision: str | None = None

    @property
    def location(self) -> str:
        if self.path.startswith(EMBEDDED):
            return str(beside_package("hub_artifacts") / self.path.removeprefix(EMBEDDED))
        return self.path

    def fetch(self) -> Path:
        """The local folder; a Hub repository is downloaded first, where it is not yet."""
        return locate(self.location, self.revision)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an artifact is bound to."""

    name: str  # as configured: a folder or a Hub repository
    revision: str | None  # a commit, for models from the Hub
    fingerprint: str  # of the weights; "" where they were not looked at
    layers: int
    width: int
    tokenizer: str  # fingerprint, see Text
