"""The datastores that drafters copy from: opened once, bound to the models of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from semspec.artifacts._datastore import Datastore
from semspec.errors import UserError
from semspec.models import ModelFacts
from semspec.types import Role

D = TypeVar("D", bound=Datastore)


def load(kind: type[D], name: str, models: Mapping[Role, ModelFacts], allow_mismatch: bool) -> D:
    """The datastore of that name, if it is this target's."""
    if not name:
        raise UserError(
            f"no datastore is named: give datastore=FOLDER_OR_REPO, made by {kind.made_by}"
        )
    store = kind.load(name)
    store.check(models["target"], allow_mismatch=allow_mismatch)
    return store
