"""The part of a model's configuration that the forward pass uses; refuses unsupported models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.deferred import Tensor, torch
from semspec.errors import UserError, first_line
from semspec.models import families
from semspec.models.folder import read_json
from semspec.models.intact import check_sizes
from semspec.storage import foreign

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
LARGEST_HEAD = 1 << 16  # largest head_dim, because the rotary embedding is allocated at once
ELSEWHERE = "way out: engine=sglang"


@dataclass(frozen=True, slots=True)
class Spec:
    family: str
    layers: int
    width: int
    inner: int  # width of the MLP
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    vocabulary: int
    context_limit: int
    tied: bool
    classifier: bool  # a reward model, whose head scores positions and does not predict tokens
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    frequencies: Tensor  # [head_dim / 2] of the rotary embedding
    rope_scale: float
    stop_ids: frozenset[int]


def read_spec(folder: Path, max_context: int) -> Spec:
    """Read config.json and generation_config.json; raise UserError for unsupported models."""
    raw = read_json(folder / "config.json")
    return spec_of(folder, raw, max_context)


def spec_of(folder: Path, raw: Mapping[str, Any], max_context: int) -> Spec:
    """Return the spec of a given config in transformers' format, for a model in ``folder``.

    Raises UserError for unsupported models.
    """
    check_sizes(folder / "config.json", raw)
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in families.DEFAULTS:
        known = ", ".join(families.DEFAULTS)
        raise UserError(f"engine=hf runs {known}, not model type '{str(family)[:40]}'; {ELSEWHERE}")
    if raw.get("quantization_config"):
        raise UserError(f"engine=hf does not support quantised weights ({folder}); {ELSEWHERE}")
    try:
        return _spec(folder, raw, family, families.read(raw), max_context)
    except UserError:
        raise
    except Exception as e:  # with a broken configuration, transformers or torch may raise anything
        raise UserError(f"cannot use {folder / 'config.json'}: {first_line(e)}") from e


def _spec(folder: Path, raw: Mapping[str, Any], family: str, config: Any, max_context: int) -> Spec:
    if (act := config.hidden_act) != "silu":
        raise UserError(f"engine=hf does not support hidden_act={str(act)[:40]}; {ELSEWHERE}")
    trained = int(config.max_position_embeddings)
    if max_context < 0 or max_context > trained:
        raise UserError(
            f"max_context={max_context}: {folder} was trained for {trained} positions; "
            f"choose 1 to {trained}, or 0 for all of them"
        )
    limit = max_context or trained
    _refuse_windows(config, limit)
    head_dim = config.head_dim
    if not 1 <= head_dim <= LARGEST_HEAD:
        shown = str(head_dim)[:40]
        raise UserError(f"{folder / 'config.json'} has head_dim={shown}, which is not valid")
    frequencies, scale = _rope(config, head_dim)
    bias = bool(config.attention_bias)
    return Spec(
        family=family,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        eps=config.rms_norm_eps,
        vocabulary=config.vocab_size,
        context_limit=limit,
        tied=bool(config.tie_word_embeddings),
        classifier=any(str(name).endswith(CLASSIFIERS) for name in raw.get("architectures") or []),
        qkv_bias=bias or family == "qwen2",  # qwen2 always has one and no setting for it
        out_bias=bias and family in ("llama", "qwen3"),
        mlp_bias=bool(config.mlp_bias) and family == "llama",
        qk_norm=family == "qwen3",
        frequencies=frequencies,
        rope_scale=scale,
        stop_ids=read_stop_ids(folder),
    )


def _refuse_windows(config: Any, limit: int) -> None:
    window = config.sliding_window
    slides = any("sliding" in kind for kind in config.layer_types or ["sliding"])
    if window and slides and window < limit:
        raise UserError(
            "engine=hf does not support sliding-window attention: set max_context to"
            f" {window} or less, where the window has no effect, or use engine=sglang"
        )


def _rope(config: Any, head_dim: int) -> tuple[Tensor, float]:
    """Return the rotary embedding's inverse frequencies and the scale of its cos and sin."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope: Mapping[str, Any] = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "default":
        powers = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, scale = 1.0 / (float(rope["rope_theta"]) ** powers), 1.0
    elif kind in ("linear", "llama3", "yarn", "dynamic"):
        # "dynamic" differs only beyond max_position_embeddings, which no context exceeds
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    else:
        raise UserError(f"engine=hf does not support rope_type={str(kind)[:40]}; {ELSEWHERE}")
    if len(frequencies) != head_dim // 2:
        raise UserError(f"engine=hf does not support partial rotary embeddings; {ELSEWHERE}")
    return frequencies.float(), float(scale)


def read_stop_ids(folder: Path) -> frozenset[int]:
    """Return the end-of-text ids from generation_config.json, or else from config.json."""
    path = folder / "generation_config.json"
    ids = read_json(path).get("eos_token_id") if os.path.lexists(path) else None
    if ids is None:
        path = folder / "config.json"
        ids = read_json(path).get("eos_token_id")
    return foreign.token_ids(ids, str(path))
