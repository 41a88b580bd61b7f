"""costs.json: a run's measured engine costs and what it learned about its drafts, for runs that are to decide alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semspec.decoding.costs import Costs
from semspec.decoding.economy import Economy
from semspec.errors import UserError
from semspec.storage.files import read_json

FILE = "costs.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """A table read from a file: fixed costs, and what was learned about each drafter; empty by default."""

    file: Path = Path()
    costs: Costs = field(default_factory=Costs)
    learned: Mapping[str, Any] = field(default_factory=dict)

    def fill(self, economy: Economy) -> None:
        """Start a drafter's economy from what was learned; raise UserError if that is damaged."""
        if (told := self.learned.get(economy.who)) is None:
            return
        try:
            economy.recall(told)
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(self.file, error) from error


def read(place: str) -> Recorded:
    """Read a table from its file or from a run's folder; raise UserError if there is none."""
    file = Path(place) / FILE if Path(place).is_dir() else Path(place)
    told = read_json(file)
    if told is None:
        raise UserError(
            f"costs={place}: no readable {FILE} there: give that of a finished run with"
            " adaptive=true, or its folder"
        )
    try:
        if told["version"] != VERSION:
            raise ValueError(f"version {told['version']}")
        return Recorded(file, Costs.of(told["costs"]), dict(told["learned"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, error) from error


def told(costs: Costs, economies: Mapping[str, Economy]) -> dict[str, Any]:
    """Return the table's content as JSON, for ``read``."""
    learned = {who: economy.told() for who, economy in economies.items()}
    return {"version": VERSION, "costs": costs.told(), "learned": learned}


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} is not a cost table ({error}): use that of another run")
