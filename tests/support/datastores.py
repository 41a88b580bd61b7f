"""Small datastores for the toy engine: texts over its tokens, found by tokens or by its states."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from semspec.artifacts.sparse_datastore import SparseDatastore, bound_to
from semspec.datastores.sparse import write_shard
from semspec.engines.toy import ToyEngine
from semspec.models import ModelFacts

TOY_FACTS = ModelFacts("toy", None, "toy", ToyEngine.layers, ToyEngine.width, "toy")
DEPTH = 16


def toy_documents(vocabulary: int, count: int = 8, length: int = 12) -> list[list[int]]:
    rng = random.Random(vocabulary)
    return [rng.choices(range(vocabulary), k=length) for _ in range(count)]


def sparse_folder(folder: Path, *shards: list[list[int]], facts: ModelFacts = TOY_FACTS) -> Path:
    """A datastore of these documents, saved below ``folder``."""
    parts, counts = {}, []
    for number, documents in enumerate(shards):
        path = folder / f"shard-{number:05d}.safetensors"
        counts.append(write_shard(path, documents, DEPTH))
        parts[path.name] = path
    config = {
        "kind": SparseDatastore.kind,
        "version": SparseDatastore.version,
        "model": bound_to(facts),
        "depth": DEPTH,
        "shards": counts,
        "documents": sum(map(len, shards)),
        "responses": "as_is",
        "data": {"source": "test"},
    }
    SparseDatastore(config, parts=parts).save(folder / "sparse")
    return folder / "sparse"


@cache
def _toy(kind: str, vocabulary: int) -> str:
    folder = Path(tempfile.mkdtemp(prefix=f"semspec-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(sparse_folder(folder, toy_documents(vocabulary)))


def with_toy_datastore(drafter: Any, vocabulary: int) -> Any:
    """The drafter as a run binds it; where it copies from a datastore, from the toy's."""
    kinds = {"rest": "sparse", "suffix": "sparse", "dresd": "dense"}
    name = type(drafter).__name__.lower()
    if getattr(drafter, "datastore", "") and name in kinds:
        drafter = replace(drafter, datastore=_toy(kinds[name], vocabulary))
    return drafter.bind({"target": TOY_FACTS, "draft": TOY_FACTS})
