"""A corpus as a suffix array, from which ``rest`` and ``suffix`` copy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semspec.artifacts import base, binding, datastore
from semspec.datastores.sparse import SparseStore, write_shard
from semspec.errors import UserError
from semspec.models.location import EXAMPLE, EXAMPLE_VOCABULARY, ModelFacts
from semspec.registry import register
from semspec.storage.json_schema import integer

_OWN = {"model": binding.MODEL, "depth": integer(1, 4096)} | datastore.COMMON


@register("artifact", "sparse_datastore")
@dataclass
class SparseDatastore(datastore.Datastore):
    """A corpus in a model's tokens, sorted to find the longest match of a text's end fast."""

    kind = "sparse_datastore"
    schema = base.of_schema(_OWN, (*_OWN, "data"))
    made_by = "python -m semspec.build_datastore kind=sparse"

    def open(self) -> SparseStore:
        names = self.part_names(self.config)
        store = SparseStore.open([self.parts[name] for name in names], self.config["depth"])
        for name, shard, tokens in zip(names, store.shards, self.config["shards"], strict=True):
            if len(shard) != tokens:
                raise UserError(f"{self.parts[name]} has {len(shard):,} tokens, not {tokens:,}")
        return store

    def figures(self) -> Mapping[str, float]:
        return {"tokens": float(sum(self.config["shards"]))}

    @classmethod
    def example(cls) -> Self:
        path = cls.example_shard()
        rng = random.Random(0)
        texts = [rng.choices(range(EXAMPLE_VOCABULARY), k=12) for _ in range(8)]
        count = write_shard(path, texts, 16)
        config = cls.config_of(
            model=bound_to(EXAMPLE),
            depth=16,
            shards=[count],
            documents=len(texts),
            responses="as_is",
            data={"source": "embedded"},
        )
        return cls(config, parts={path.name: path})


def bound_to(model: ModelFacts) -> dict[str, Any]:
    """Describe the model without layers and width: tokens can be copied for any with its tokenizer."""
    known = binding.of(model)
    return {name: known[name] for name in known if name not in ("layers", "width")}
