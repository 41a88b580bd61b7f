"""Folders of a run's models: light files are fetched at once, weights when everything else is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from semspec.models import hub
from semspec.models.hub import Stock
from semspec.models.location import ModelConfig
from semspec.types import Role


@dataclass(frozen=True)
class Folders:
    """Where models are, and the commits they were resolved to.

    Later fetches use the same commit, even if a branch has moved by then.
    """

    light: Mapping[Role, Path]  # with configuration and tokenizer; weights may be missing
    pinned: Mapping[Role, ModelConfig]

    @classmethod
    def of(cls, models: Mapping[Role, ModelConfig], weights: bool = True) -> Folders:
        """Fetch configurations and tokenizers; raise UserError for a missing model.

        ``weights``: they will be needed here, so a local folder must have them already.
        """
        light = {
            role: model.fetch(weights=weights and model.local) for role, model in models.items()
        }
        pinned = {role: _pinned(model, light[role]) for role, model in models.items()}
        return cls(light, pinned)

    def fetch(self, role: Role) -> Path:
        """Fetch a model's weights and return its folder."""
        with hub.noted():  # the run notes names as they were given
            return self.pinned[role].fetch()

    def fetch_all(self) -> None:
        """Fetch all weights; raise UserError first if the disk has too little room for the missing ones."""
        hub.check_room(self.stocks().values())
        for role in self.pinned:
            self.fetch(role)

    def stocks(self) -> dict[Role, Stock | None]:
        """Return the files of each model; None where they are not known."""
        return {role: hub.stock(m.location, m.revision) for role, m in self.pinned.items()}


def _pinned(model: ModelConfig, folder: Path) -> ModelConfig:
    if model.local:
        return model
    return replace(model, revision=folder.name)  # a snapshot is named after its commit
