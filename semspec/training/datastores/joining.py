"""Join datastores: append a corpus to an existing one (append=), or merge finished ones (merge=).

Sparse: the last shard's documents are cut and sorted again together with the new ones, so the result is
byte for byte that of one build from all documents. Dense: shards are put side by side, which requires that
their keys come from the same projection, and the index is built again over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from semspec.artifacts import base, binding
from semspec.artifacts.datastore import Datastore, shard_names
from semspec.artifacts.dense_datastore import INDEX, DenseDatastore
from semspec.artifacts.sparse_datastore import SparseDatastore
from semspec.datastores import sparse
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.models.location import ModelFacts
from semspec.report.progress import Steps
from semspec.storage import manifests

KINDS: Mapping[str, type[Datastore]] = {"sparse": SparseDatastore, "dense": DenseDatastore}


@dataclass(frozen=True)
class Base:
    """A finished datastore, to append to or to merge."""

    name: str
    folder: Path
    store: Datastore

    @classmethod
    def of(cls, name: str, kind: str) -> Self:
        folder = base.find(name)
        return cls(name, folder, KINDS[kind].read(folder))

    @property
    def digest(self) -> str:
        """The sha256 of its manifest (without one, of its config): identifies its content."""
        manifest = self.folder / manifests.NAME
        return manifests.sha256(manifest if manifest.is_file() else self.folder / base.CONFIG)

    def options(self) -> dict[str, Any]:
        """Return those options of its build that an appended corpus has to share."""
        names = ("depth",) if isinstance(self.store, SparseDatastore) else ("dims",)
        return {name: self.store.config[name] for name in names}

    def paths(self) -> list[Path]:
        return [self.store.parts[n] for n in shard_names(len(self.store.config["shards"]))]

    def check(self, other: Base) -> None:
        """Raise UserError if the other datastore belongs to another model or tokenizer."""
        model = self.store.config["model"]
        facts = ModelFacts(
            model["id"],
            model.get("revision"),
            model.get("fingerprint") or "",
            model.get("layers", 0),
            model.get("width", 0),
            model["tokenizer"],
        )
        impossible, unlike = binding.differences(
            other.store.config, facts, "model", None, None, None
        )
        if told := impossible + unlike:
            raise UserError(
                f"{other.name} cannot join {self.name}: {'; '.join(told)}. Merge datastores of one model"
            )


def joined_config(first: Datastore, others: Sequence[Datastore]) -> dict[str, Any]:
    """Return the first one's config, with the documents and data sources of all."""
    every = [first, *others]
    by_target = all(store.config["responses"] == "target" for store in every)
    parts = [part for store in every for part in _data(store.config)]
    return first.config | {
        "provenance": base.made_with(),
        "documents": sum(store.config["documents"] for store in every),
        "responses": "target" if by_target else "as_is",
        "data": {"source": "joined", "parts": parts},
    }


def _data(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List a datastore's data sources; of a joined one, those of all its parts."""
    data: dict[str, Any] = config["data"]
    return list(data["parts"]) if data.get("source") == "joined" else [data]


def documents_of(path: Path) -> Iterator[list[int]]:
    """Yield the documents of a sparse shard in order."""
    text = sparse.open_shard(path).text()
    ends = [*(text == sparse.END).nonzero()[0].tolist(), len(text)]
    for start, end in zip(ends, ends[1:], strict=False):
        yield text[start + 1 : end].tolist()


def joined_sparse(
    first: Base, others: Iterable[Sequence[int]], folder: Path, shard: int, steps: Steps
) -> tuple[list[int], list[Path]]:
    """Replace the first store's last shard by new ones that also hold ``others``; skip those already written.

    Returns the number of places and the path of every shard.
    """
    counts, paths = list(first.store.config["shards"]), first.paths()
    open_end, depth = paths.pop(), first.store.config["depth"]
    del counts[-1]
    with steps.stage("sorting", None) as tell:
        whole = (d for part in (documents_of(open_end), others) for d in part)
        for texts in cut(whole, shard):
            path = folder / f"shard-{len(counts):05d}.safetensors"
            counts.append(sum(len(tokens) + 1 for tokens in texts))
            if not path.exists():
                sparse.write_shard(path, texts, depth)
            paths.append(path)
            tell.by(counts[-1])
    return counts, paths


def cut(documents: Iterable[Sequence[int]], size: int) -> Iterator[list[list[int]]]:
    """Yield each shard's documents; cut a document that is longer than a shard."""
    texts: list[list[int]] = []
    filled = 0
    for own in documents:
        for start in range(0, len(own), size - 1):
            piece = list(own[start : start + size - 1])
            if filled + len(piece) + 1 > size:
                yield texts
                texts, filled = [], 0
            texts.append(piece)
            filled += len(piece) + 1
    if texts:
        yield texts


def joined_dense(first: Base, *others: DenseDatastore) -> DenseDatastore:
    """Concatenate the shards of datastores that share a projection; the result has no index yet."""
    assert isinstance(first.store, DenseDatastore)
    every = [first.store, *others]
    paths = [path for store in every for name, path in store.parts.items() if name != INDEX]
    config = joined_config(first.store, others) | {
        "shards": [count for store in every for count in store.config["shards"]],
        "metrics": {"variance": first.store.config["metrics"].get("variance")},
    }
    return DenseDatastore(
        config, first.store.tensors, parts=dict(zip(shard_names(len(paths)), paths, strict=True))
    )


def check_projection(first: Base, other: Base) -> None:
    """Raise UserError if two dense datastores have different projections, so that keys do not compare."""
    same = all(torch.equal(t, other.store.tensors[n]) for n, t in first.store.tensors.items())
    if first.store.config["dims"] != other.store.config["dims"] or not same:
        raise UserError(
            f"{other.name} was fitted to other states than {first.name}, so their keys"
            f" cannot be compared: add its corpus with append={first.name}"
        )
