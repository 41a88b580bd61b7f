"""Configurations of the model families that ``engine=hf`` runs, with transformers' own defaults.

Transformers has classes for them, but importing one takes 4 s of CPU, spent only on its docstring, which is more than
everything else before a run's first token. Tests check that both read a config.json in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

_TYPES: dict[str, Any] = {
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int | None,
    "head_dim": int | None,
    "hidden_act": str,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
    "tie_word_embeddings": bool,
    "rope_parameters": dict | None,
    "attention_bias": bool,
    "mlp_bias": bool,
    "use_sliding_window": bool,
    "sliding_window": int | None,
    "max_window_layers": int,
    "layer_types": list[str] | None,
}
_COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 0,
    "layer_types": None,
}
_QWEN = {
    **_COMMON,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
DEFAULTS = {
    "llama": {**_COMMON, "intermediate_size": 11008, "max_position_embeddings": 2048},
    "mistral": {
        **_COMMON,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}


def read(raw: Mapping[str, Any]) -> Any:
    """Return the configuration of a known family; for a broken one, raise what transformers raises."""
    given = {key: value for key, value in deepcopy(dict(raw)).items() if key != "model_type"}
    return _kind(raw["model_type"]).from_dict(given)


@cache
def _kind(family: str) -> Any:
    from huggingface_hub.dataclasses import strict
    from transformers.configuration_utils import PreTrainedConfig

    def complete(self: Any, **others: Any) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if family.startswith("qwen"):
            _slide_only_where_asked(self)
        PreTrainedConfig.__post_init__(self, **others)  # type: ignore[no-untyped-call]

    # real types, because ``strict`` does not check annotations given as text
    body = {"model_type": family, "__annotations__": _TYPES, "__post_init__": complete}
    return strict(
        type(f"{family.title()}Config", (PreTrainedConfig,), {**body, **DEFAULTS[family]})
    )


def _slide_only_where_asked(config: Any) -> None:
    """Keep a window only with ``use_sliding_window``, and only in layers from ``max_window_layers``."""
    config.sliding_window = config.sliding_window if config.use_sliding_window else None
    if config.layer_types is None:
        config.layer_types = [
            "sliding_attention"
            if config.sliding_window is not None and layer >= config.max_window_layers
            else "full_attention"
            for layer in range(config.num_hidden_layers)
        ]
