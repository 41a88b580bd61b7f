"""Random drafting heads in the published formats, and folders of fitting targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from semspec.engines.toy import ToyEngine

TOY_LAYERS = (0, 1, 2)


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / name)
    return folder


def target_folder(
    folder: Path, vocabulary: int, width: int = ToyEngine.width, layers: int = ToyEngine.layers
) -> Path:
    """Write the parts of a target that a head reads."""
    config = {"num_hidden_layers": layers, "hidden_size": width, "vocab_size": vocabulary}
    generator = torch.Generator().manual_seed(1)
    embed = torch.randn(vocabulary, width, generator=generator)
    return write(folder, config, {"model.embed_tokens.weight": embed}, "model.safetensors")


def eagle3_tensors(
    vocabulary: int,
    ids: Sequence[int],
    width: int = 8,
    target_width: int = ToyEngine.width,
    heads: int = 2,
    kv_heads: int = 1,
    inner: int = 12,
    seed: int = 0,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Return a smaller checkpoint with the names and types of ``yuhuili/EAGLE3-LLaMA3.1-Instruct-8B``."""
    d, head_dim, generator = width, width // heads, torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return scale * torch.randn(*size, generator=generator) * size[-1] ** -0.5

    kv = kv_heads * head_dim
    member = torch.zeros(vocabulary, dtype=torch.bool)
    member[list(ids)] = True
    return {
        "d2t": torch.tensor(list(ids)) - torch.arange(len(ids)),
        "t2d": member,
        "midlayer.self_attn.q_proj.weight": random(d, 2 * d),
        "midlayer.self_attn.k_proj.weight": random(kv, 2 * d),
        "midlayer.self_attn.v_proj.weight": random(kv, 2 * d),
        "midlayer.self_attn.o_proj.weight": random(d, d),
        "midlayer.mlp.gate_proj.weight": random(inner, d),
        "midlayer.mlp.up_proj.weight": random(inner, d),
        "midlayer.mlp.down_proj.weight": random(d, inner),
        "midlayer.hidden_norm.weight": 1 + 0.3 * random(d),
        "midlayer.input_layernorm.weight": 1 + 0.3 * random(d),
        "midlayer.post_attention_layernorm.weight": 1 + 0.3 * random(d),
        "norm.weight": 1 + 0.3 * random(d),
        "fc.weight": random(d, 3 * target_width),
        "lm_head.weight": 3 * random(len(ids), d),
    }


def eagle3_config(
    vocabulary: int,
    draft_vocabulary: int,
    width: int = 8,
    heads: int = 2,
    kv_heads: int = 1,
    inner: int = 12,
    **more: Any,
) -> dict[str, Any]:
    """Return a config.json like the published ones."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.28.1",
        "use_cache": True,
        "vocab_size": vocabulary,
        "draft_vocab_size": draft_vocabulary,
        **more,
    }


def toy_eagle3(folder: Path, vocabulary: int, ids: Sequence[int] | None = None) -> Path:
    """Write a head for the toy engine, with its own embedding because it is wider than the target."""
    ids = list(range(vocabulary - 2)) if ids is None else list(ids)
    tensors = eagle3_tensors(vocabulary, ids)
    generator = torch.Generator().manual_seed(2)
    tensors["embed_tokens.weight"] = torch.randn(vocabulary, 8, generator=generator)
    places = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in TOY_LAYERS]}
    config = eagle3_config(
        vocabulary, len(ids), eagle_config=places, target_hidden_size=ToyEngine.width
    )
    return write(folder, config, tensors, "model.safetensors")


def medusa_tensors(
    vocabulary: int, width: int, heads: int = 3, blocks: int = 2, seed: int = 0
) -> dict[str, Tensor]:
    """Return a smaller checkpoint with the names and types of ``FasterDecoding/medusa-vicuna-7b-v1.3``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(heads):
        for block in range(blocks):
            at = f"{head}.{block}.linear"
            tensors[f"{at}.weight"] = torch.randn(width, width, generator=generator) * width**-0.5
            tensors[f"{at}.bias"] = torch.randn(width, generator=generator)
        tensors[f"{head}.{blocks}.weight"] = torch.randn(vocabulary, width, generator=generator)
    return tensors


def medusa_config(heads: int = 3, blocks: int = 2) -> dict[str, Any]:
    return {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "medusa_num_heads": heads,
        "medusa_num_layers": blocks,
        "transformers_version": "4.34.1",
    }


def toy_medusa(folder: Path, vocabulary: int) -> Path:
    """Write Medusa heads for the toy engine."""
    tensors = medusa_tensors(vocabulary, ToyEngine.width)
    return write(folder, medusa_config(), tensors, "medusa_lm_head.safetensors")
