"""A small model that drafts tokens inside the target's server: what it is started with, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from semspec.models import memory
from semspec.models.location import ModelConfig
from semspec.models.memory import Gpu, ModelSize, Place
from semspec.protocols import Small
from semspec.sglang_plugin import settings


def asked_of_plugin(small: Small) -> dict[str, Any]:
    """Return the plugin's settings: this model drafts tokens, which SGLang verifies."""
    own = {"model": small.model, "length": small.length, "adaptive": small.adaptive}
    return {"verification": {}, "drafting": {"lm": own}}


def words_of(small: Small | None) -> list[str]:
    """Return SGLang's arguments for the server: it verifies a chain, and the token before it."""
    if small is None:
        return []
    nodes = str(small.length + 1)
    return ["--speculative-algorithm", settings.MODEL, "--speculative-num-draft-tokens", nodes]


def size_with(size: ModelSize, small: Small) -> ModelSize:
    """Return what a model takes together with the small one inside its server."""
    beside = memory.size_of(ModelConfig(path=str(small.folder)))
    return replace(size, weights=size.weights + beside.weights, token=size.token + beside.token)


def left_beside(small: Small, place: Place, gpus: Sequence[Gpu]) -> Place:
    """Return the place with the small model's cache left out of the share, which SGLang fills with its own."""
    cache = place.tokens * memory.size_of(ModelConfig(path=str(small.folder))).token
    free = min(gpu.free for gpu in gpus if gpu.index in place.gpus)
    return replace(place, share=int((place.share - cache / free) * 1000) / 1000)
