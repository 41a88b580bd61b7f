"""Work out a model's memory from its config.json and the sizes of its files, without loading weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from semspec.errors import UserError
from semspec.models import hub
from semspec.models.folder import read_json
from semspec.models.intact import check_sizes
from semspec.models.location import ModelConfig, canonical_name
from semspec.models.machine import shown
from semspec.types import Role

WIDTHS = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
HALF = 2  # bytes of a number on a GPU, in weights and KV cache
PROMPT = 2048  # tokens reserved for a problem's prompt
_SHARD = re.compile(r".*-of-\d+\.safetensors")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The memory that a model needs on a GPU."""

    name: str
    weights: int  # bytes
    token: int  # bytes of KV cache per token
    heads: int
    kv_heads: int
    context: int  # trained context length

    def splits(self, ranks: int) -> bool:
        """Return whether the model can be split over this many GPUs."""
        return self.heads % ranks == 0 and (
            self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0
        )

    def part(self, ranks: int) -> ModelSize:
        """Return the part of the model on one of this many GPUs."""
        kept = min(ranks, self.kv_heads)  # each GPU holds at least one head's cache
        return replace(self, weights=-(-self.weights // ranks), token=-(-self.token // kept))


def size_of(model: ModelConfig) -> ModelSize:
    """Return the size of a model, without fetching weights from the Hub.

    Raise UserError if the model cannot be found or its config.json does not describe a model.
    """
    folder = model.fetch(weights=False)
    config = read_json(folder / "config.json")
    check_sizes(folder / "config.json", config)
    stored = stored_bytes(hub.sizes(model.location, model.revision))
    try:
        return size_from(canonical_name(model), config, stored)
    except (ValueError, OverflowError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(
            f"{folder / 'config.json'} does not describe a language model ({error})"
        ) from error


def stored_bytes(files: Mapping[str, int]) -> int:
    """Return the bytes of a model's weights, counted once even if a repository holds them twice."""
    weights = {name: size for name, size in files.items() if name.endswith(".safetensors")}
    shards = [size for name, size in weights.items() if _SHARD.fullmatch(name)]
    if "model.safetensors.index.json" in files and shards:
        return sum(shards)
    return weights.get("model.safetensors", sum(weights.values()))


def size_from(name: str, config: Mapping[str, Any], stored: int) -> ModelSize:
    """Return the size of a model with this config.json and ``stored`` bytes of weights in its files."""
    shape = {**config, **(config.get("text_config") or {})}
    layers, heads = int(shape["num_hidden_layers"]), int(shape["num_attention_heads"])
    kv_heads = int(shape.get("num_key_value_heads") or heads)
    if shape.get("kv_lora_rank"):  # one compressed row holds keys and values of all heads
        row, kv_heads = int(shape["kv_lora_rank"]) + int(shape.get("qk_rope_head_dim") or 0), 1
    else:
        row = 2 * kv_heads * int(shape.get("head_dim") or int(shape["hidden_size"]) // heads)
    width = WIDTHS.get(str(shape.get("dtype") or shape.get("torch_dtype")), HALF)
    quantised = bool(config.get("quantization_config"))
    weights = stored if quantised else stored * HALF // width
    trained = int(shape["max_position_embeddings"])
    return ModelSize(name, weights, layers * row * HALF, heads, kv_heads, trained)


def tokens_for(max_new_tokens: int, sizes: Mapping[Role, ModelSize]) -> int:
    """Return the tokens of the longest problem: budget plus prompt, limited by the models' contexts."""
    return min(max_new_tokens + PROMPT, *(size.context for size in sizes.values()))


def held(size: ModelSize, tokens: int, width: int = HALF) -> str:
    """Describe a model's memory: weights, and a KV cache of ``tokens``; ``width``: bytes per number."""
    weights, cache = (part * width // HALF for part in (size.weights, tokens * size.token))
    return f"{shown(weights)} of weights and {shown(cache)} of KV cache ({tokens:,} tokens)"
