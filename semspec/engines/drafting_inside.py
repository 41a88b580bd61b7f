"""Server arguments and memory for a small model that drafts tokens inside the target's server."""

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
    """Return plugin settings under which this model drafts tokens and SGLang verifies them."""
    own = {"model": small.model, "length": small.length, "adaptive": small.adaptive}
    return {"verification": {}, "drafting": {"lm": own}}


def words_of(small: Small | None) -> list[str]:
    """Return the server's SGLang arguments: it verifies the drafted chain plus the token before it."""
    if small is None:
        return []
    nodes = str(small.length + 1)
    return ["--speculative-algorithm", settings.MODEL, "--speculative-num-draft-tokens", nodes]


def size_with(size: ModelSize, small: Small) -> ModelSize:
    """Return the size of a model together with the small model inside its server."""
    beside = memory.size_of(ModelConfig(path=str(small.folder)))
    return replace(size, weights=size.weights + beside.weights, token=size.token + beside.token)


def with_share(
    place: Place, share: float | None, small: Small | None, gpus: Sequence[Gpu]
) -> Place:
    """Return the place with the memory share that the user gave, or else with room for a small model inside.

    SGLang fills its share, so the small model's cache is left out of it.
    """
    if share is not None:
        return replace(place, share=share)
    if small is None:
        return place
    cache = place.tokens * memory.size_of(ModelConfig(path=str(small.folder))).token
    free = min(gpu.free for gpu in gpus if gpu.index in place.gpus)
    return replace(place, share=int((place.share - cache / free) * 1000) / 1000)
