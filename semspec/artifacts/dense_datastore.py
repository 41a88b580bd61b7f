"""A target's states over a corpus and the tokens that followed them; ``dresd`` drafts from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from semspec.artifacts import base, binding, datastore
from semspec.datastores import indices
from semspec.datastores.dense import DenseStore, Projection, open_shards, write_shard
from semspec.datastores.files import open_arrays
from semspec.deferred import torch
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY
from semspec.registry import register
from semspec.storage import manifests
from semspec.storage.json_schema import integer, mapping, record
from semspec.storage.tensors import Layout

INDEX = "index.safetensors"
# files: names and sizes in bytes; all of them are in one file
_INDEX = record(
    name={"enum": list(indices.NAMES)},
    files=mapping(datastore.COUNT),
    **dict.fromkeys(("searched", "reordered"), integer(1, 1 << 24)),  # ``indices.Effort``
) | {"required": ["name", "files"]}
_OWN = {"model": binding.model_with("layers", "width"), "dims": integer(1, 4096), "index": _INDEX}


@register("artifact", "dense_datastore")
@dataclass
class DenseDatastore(datastore.Datastore):
    """A target's states over a corpus, searchable by similarity, with the tokens that followed each.

    ``tensors`` holds ``mean`` and ``deviation`` of the states, and the principal components of the
    standardised states, with their ``centre``.
    """

    kind = "dense_datastore"
    schema = base.of_schema(
        _OWN | datastore.COMMON, (*_OWN, *datastore.COMMON, "data", "training", "metrics")
    )
    made_by = "python -m semspec.build_datastore kind=dense"
    hashed_later = frozenset({INDEX})

    @classmethod
    def layout(cls, config: Mapping[str, Any]) -> Layout:
        width, dims = config["model"]["width"], config["dims"]
        if dims > width:
            raise ValueError(f"dims is {dims}, of states of width {width}")
        row = ((width,), (torch.float32,))
        rows = dict.fromkeys(("mean", "deviation", "centre"), row)
        return {**rows, "components": ((dims, width), (torch.float32,))}

    @classmethod
    def part_names(cls, config: Mapping[str, Any]) -> list[str]:
        return super().part_names(config) + [INDEX] * bool(config["index"]["files"])

    def check_content(self) -> None:
        if not bool((self.tensors["deviation"] > 0).all()):
            raise ValueError("deviation is not above 0 everywhere")
        if self.config["index"]["name"] != "exact" and not self.config["index"]["files"]:
            raise ValueError("the index has no files")

    def projection(self) -> Projection:
        return Projection(**{name: tensor.numpy() for name, tensor in self.tensors.items()})

    def open(self, index: bool = False) -> DenseStore:
        """Map the shards; with ``index`` also read the index in the background: the first search waits for it."""
        paths = [self.parts[n] for n in self.part_names(self.config) if n != INDEX]
        shards = open_shards(paths, self.config["dims"])
        for path, shard, entries in zip(paths, shards, self.config["shards"], strict=True):
            if len(shard) != entries:
                raise UserError(f"{path} has {len(shard):,} entries, not {entries:,}")
        keys = [shard.keys for shard in shards]
        stored = self.config["index"]
        name, sizes = stored["name"], stored["files"]
        effort = indices.Effort(stored.get("searched", 0), stored.get("reordered", 0))
        found: indices.Index = indices.Exact(keys)
        if index and name != "exact":
            path = self.parts[INDEX]
            mapped = open_arrays(path, {name: ("U8", (size,)) for name, size in sizes.items()})
            files = {name: mapped.array(name) for name in sizes}

            def read() -> indices.Index:
                # its hash first: a native reader checks little
                manifests.check(path.parent, manifests.read(path.parent), (path.name,))
                return indices.load(name, files, keys, path, effort)

            found = indices.Opening(read)
        return DenseStore(shards, self.projection(), found)

    def figures(self) -> Mapping[str, float]:
        metrics = self.config["metrics"]
        names = ("mrr", "recall_at_10", "variance")
        entries = {"entries": float(sum(self.config["shards"]))}
        return entries | {n: float(metrics[n]) for n in names if metrics.get(n) is not None}

    @classmethod
    def example(cls) -> Self:
        path = cls.example_shard()
        rng, count = np.random.default_rng(0), 40
        turns = rng.uniform(0, 2 * np.pi, count)
        keys = np.stack([np.cos(turns), np.sin(turns)], 1).astype(np.float32)
        tokens = rng.integers(0, EXAMPLE_VOCABULARY, count + 1).tolist()
        write_shard(path, keys, np.arange(count, dtype=np.int32), tokens)
        config = cls.config_of(
            model=binding.of(EXAMPLE),
            dims=2,
            shards=[count],
            documents=1,
            responses="target",
            index={"name": "exact", "files": {}},
            data={"source": "embedded"},
            training={"rows": count},
            metrics={"mrr": 1.0},
        )
        tensors = {"mean": torch.zeros(4), "deviation": torch.ones(4), "centre": torch.zeros(4)}
        return cls(config, tensors | {"components": torch.eye(2, 4)}, parts={path.name: path})
