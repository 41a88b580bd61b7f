"""Small datastores of toy-engine texts, searched by tokens or by the engine's states."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semspec.artifacts import binding
from semspec.artifacts.dense_datastore import DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore, bound_to
from semspec.cli.build_datastore import main
from semspec.datastores import dense
from semspec.datastores.sparse import END, write_shard
from semspec.engines.toy import Toy, ToyEngine
from semspec.models.location import ModelFacts
from tests.support.binding import run_of

TOY_FACTS = ModelFacts("toy", None, "toy", ToyEngine.layers, ToyEngine.width, "toy")
DEPTH = 16


def toy_documents(vocabulary: int, count: int = 8, length: int = 12) -> list[list[int]]:
    rng = random.Random(vocabulary)
    return [rng.choices(range(vocabulary), k=length) for _ in range(count)]


def sparse_folder(
    folder: Path, *shards: list[list[int]], facts: ModelFacts = TOY_FACTS, depth: int = DEPTH
) -> Path:
    """Save a sparse datastore of these documents below ``folder``; return its folder."""
    parts, counts = {}, []
    for number, documents in enumerate(shards):
        path = folder / f"shard-{number:05d}.safetensors"
        counts.append(write_shard(path, documents, depth))
        parts[path.name] = path
    config = {
        "kind": SparseDatastore.kind,
        "version": SparseDatastore.version,
        "model": bound_to(facts),
        "depth": depth,
        "shards": counts,
        "documents": sum(map(len, shards)),
        "responses": "as_is",
        "data": {"source": "test"},
    }
    SparseDatastore(config, parts=parts).save(folder / "sparse")
    return folder / "sparse"


def dense_folder(folder: Path, documents: list[list[int]], vocabulary: int) -> Path:
    """Save a dense datastore of these documents by the toy target's states, with all components; return its folder."""
    features = Toy(vocabulary=vocabulary).models()["target"].features[:, :, -1].numpy()
    states, places, tokens = list[Any](), list[int](), list[int]()
    for document in documents:
        for at in range(1, len(document) - 1):
            states.append(features[document[at - 1], document[at]])
            places.append(len(tokens) + at)
        tokens += [*document, END]
    rows = np.stack(states).astype(np.float32)
    projection, variance = dense.fit(lambda: iter([rows]), ToyEngine.width)
    path = folder / "shard-00000.safetensors"
    dense.write_shard(path, projection(rows), np.array(places, np.int32), tokens)
    names = ("mean", "deviation", "centre", "components")
    config = {
        "kind": DenseDatastore.kind,
        "version": DenseDatastore.version,
        "model": binding.of(TOY_FACTS),
        "dims": ToyEngine.width,
        "shards": [len(rows)],
        "documents": len(documents),
        "responses": "as_is",
        "index": {"name": "exact", "files": {}},
        "data": {"source": "test"},
        "training": {"rows": len(rows)},
        "metrics": {"variance": variance},
    }
    tensors = {name: torch.from_numpy(getattr(projection, name)) for name in names}
    DenseDatastore(config, tensors, parts={path.name: path}).save(folder / "dense")
    return folder / "dense"


@cache
def _toy(kind: str, vocabulary: int) -> str:
    folder = Path(tempfile.mkdtemp(prefix=f"semspec-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    documents = toy_documents(vocabulary)
    if kind == "dense":
        return str(dense_folder(folder, documents, vocabulary))
    return str(sparse_folder(folder, documents))


KINDS = {"rest": "sparse", "suffix": "sparse", "dresd": "dense"}


def with_toy_datastore(drafter: Any, vocabulary: int) -> Any:
    """Return the drafter bound as in a run; its datastores, if any, are the toy ones."""
    name = type(drafter).__name__.lower()
    if name in KINDS and drafter.datastore:
        drafter = replace(drafter, datastore=_toy(KINDS[name], vocabulary))
    for option in ("sparse", "dense"):
        if getattr(drafter, option, ""):
            drafter = replace(drafter, **{option: _toy(option, vocabulary)})
    return drafter.bind(run_of({"target": TOY_FACTS, "draft": TOY_FACTS}))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one-line error with which ``semspec.build_datastore`` refuses its arguments."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("semspec: ") and told.count("\n") == 1, told
    return told
