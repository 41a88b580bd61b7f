"""Open the datastores that drafters copy from, and bind them to the models of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from semspec import config
from semspec.artifacts import base
from semspec.artifacts.datastore import Datastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.datastores.dense import DenseStore
from semspec.datastores.sparse import SparseStore
from semspec.errors import UserError
from semspec.models.location import EMBEDDED, ModelConfig, ModelFacts
from semspec.protocols import Run, Source
from semspec.types import Role

CORPUS = "HuggingFaceH4/ultrachat_200k"  # what REST and DReSD copy from
D = TypeVar("D", bound=Datastore)


def sources(kind: type[Datastore], name: str, run: Run) -> list[Source]:
    """Return where a datastore is; raise UserError if none is named."""
    if not name:
        command, out = building(kind, run.places["target"])
        raise UserError(
            f"a datastore is missing: give datastore=FOLDER_OR_REPO; '{command}' makes"
            f" {out} from the target's own answers"
        )
    return [base.source("datastore", name)]


def building(kind: type[Datastore], target: ModelConfig) -> tuple[str, str]:
    """Return the command that makes a datastore for a target, and the folder that it writes."""
    short = kind.kind.partition("_")[0]
    out = f"datastores/{target.path.rstrip('/').rpartition('/')[2]}-{short}"
    corpus = "embedded" if target.path.startswith(EMBEDDED) else CORPUS
    naming = config.naming("model", target)
    return " ".join([kind.made_by, *naming, f"corpus={corpus}", f"out={out}"]), out


def load(kind: type[D], name: str, run: Run, allow_mismatch: bool) -> D:
    """Return the datastore of that name; raise UserError if it is not this target's."""
    sources(kind, name, run)
    store = kind.load(name)
    command, _ = building(kind, run.places["target"])
    store.check(run.models["target"], allow_mismatch=allow_mismatch, command=command)
    return store


def bind(name: str, store: SparseStore | DenseStore, models: Mapping[Role, ModelFacts]) -> None:
    """Bind a datastore to the target's vocabulary, which must have all its tokens."""
    if vocabulary := models["target"].vocabulary:
        store.bind(name, vocabulary)


def opened(name: str, run: Run, allow_mismatch: bool, option: str, least: int) -> SparseStore:
    """Return an open suffix array; raise UserError if it is not deep enough for ``option``, which asks for ``least``."""
    store = load(SparseDatastore, name, run, allow_mismatch).open()
    if store.depth < least:
        raise UserError(
            f"{name} was built with depth={store.depth}, and {option}={least} needs longer"
            f" matches, so it would never draft: rebuild it with depth={least} or more, or"
            f" give {option}={store.depth}"
        )
    bind(name, store, run.models)
    return store
