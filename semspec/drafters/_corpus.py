"""The datastores that drafters copy from: opened once, bound to the models of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from semspec.artifacts import base
from semspec.artifacts.datastore import Datastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.datastores.dense import DenseStore
from semspec.datastores.sparse import SparseStore
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.protocols import Source
from semspec.types import Role

D = TypeVar("D", bound=Datastore)


def sources(kind: type[Datastore], name: str) -> list[Source]:
    """Return where a datastore is; raise UserError if none is named."""
    if not name:
        way = f"give datastore=FOLDER_OR_REPO, made by {kind.made_by}"
        raise UserError(f"no datastore is named: {way}")
    return [base.source("datastore", name)]


def load(kind: type[D], name: str, models: Mapping[Role, ModelFacts], allow_mismatch: bool) -> D:
    """The datastore of that name, if it is this target's."""
    sources(kind, name)
    store = kind.load(name)
    store.check(models["target"], allow_mismatch=allow_mismatch)
    return store


def bind(name: str, store: SparseStore | DenseStore, models: Mapping[Role, ModelFacts]) -> None:
    """Refuse a datastore with tokens that the target does not have."""
    if vocabulary := models["target"].vocabulary:
        store.bind(name, vocabulary)


def opened(
    name: str, models: Mapping[Role, ModelFacts], allow_mismatch: bool, option: str, least: int
) -> SparseStore:
    """A suffix array that holds matches of as many tokens as the drafter's option asks for at least."""
    store = load(SparseDatastore, name, models, allow_mismatch).open()
    if store.depth < least:
        raise UserError(
            f"{name} was built with depth={store.depth}, and {option}={least} asks for longer matches:"
            f" nothing would be drafted from it; build it with depth={least} or more, or give"
            f" {option}={store.depth}"
        )
    bind(name, store, models)
    return store
