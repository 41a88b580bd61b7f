"""Small heads in every published layout, and plain reference implementations written from the papers.

EAGLE-3: the paper, section 3, and the layouts of its authors, of speculators and of vLLM. Medusa: the paper, section
2.1, and the layouts of its authors, of TGI and of vLLM. The references read the published tensor names themselves and use
nothing from ``semspec.heads``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCABULARY, WIDTH, LAYERS, INNER, HEADS, KV_HEADS = 24, 16, 9, 20, 4, 2
IDS = (1, 2, 3, 5, 8, 9, 13, 14, 17, 21)
EPS, THETA = 1e-5, 10000.0
NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
MATRICES = {
    **dict.fromkeys(("self_attn.q_proj",), (WIDTH, 2 * WIDTH)),
    **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (WIDTH // 2, 2 * WIDTH)),
    "self_attn.o_proj": (WIDTH, WIDTH),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (INNER, WIDTH)),
    "mlp.down_proj": (WIDTH, INNER),
}


class Random:
    """Random half-precision tensors, reproducible by a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *size: int) -> Tensor:
        return (torch.randn(*size, generator=self.generator) * size[-1] ** -0.5).half()


def write_target(folder: Path, tied: bool = False) -> Path:
    """Write the parts of a target that a head reads; ``tied``: its logits use the embedding."""
    folder.mkdir(parents=True)
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(sizes | {"tie_word_embeddings": tied}))
    random = Random(1)
    tensors = {"model.embed_tokens.weight": random(VOCABULARY, WIDTH)}
    if not tied:
        tensors["lm_head.weight"] = random(VOCABULARY, WIDTH)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# ---- EAGLE-3 --------------------------------------------------------------------------------------


def eagle3_tensors(
    seed: int = 0, layer: str = "midlayer.", biases: bool = False
) -> dict[str, Tensor]:
    """Return a head's tensors; ``layer`` is the prefix of its decoder layer's names."""
    random = Random(seed)
    made = {f"{layer}{name}.weight": random(*size) for name, size in MATRICES.items()}
    made |= {f"{layer}{name}.weight": 1 + random(WIDTH) for name in NORMS}
    made["fc.weight"] = random(WIDTH, 3 * WIDTH)
    made["norm.weight"] = 1 + random(WIDTH)
    made["lm_head.weight"] = random(len(IDS), WIDTH)
    if biases:
        made |= {f"{layer}{name}.bias": random(size[0]) for name, size in MATRICES.items()}
        made["fc.bias"] = random(WIDTH)
    made["d2t"] = torch.tensor(IDS) - torch.arange(len(IDS))
    made["t2d"] = torch.isin(torch.arange(VOCABULARY), torch.tensor(IDS))
    return made


def layer_config(**more: Any) -> dict[str, Any]:
    """Return the decoder layer's config in transformers' format."""
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPS,
        "vocab_size": VOCABULARY,
        **more,
    }


def authors_config(**more: Any) -> dict[str, Any]:
    """Return a config.json like that of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B."""
    return layer_config(
        architectures=["LlamaForCausalLM"],
        bos_token_id=3,
        eos_token_id=4,
        initializer_range=0.02,
        pad_token_id=0,
        tie_word_embeddings=False,
        torch_dtype="float16",
        transformers_version="4.28.1",
        use_cache=True,
        draft_vocab_size=len(IDS),
        **more,
    )


def speculators_config(norm_before_residual: bool, **more: Any) -> dict[str, Any]:
    """Return a config.json as speculators writes it (nm-testing/EAGLE3-LLaMA3.1-Instruct-8B-converted)."""
    layer = layer_config(
        attention_bias=False,
        head_dim=WIDTH // HEADS,
        mlp_bias=False,
        rope_scaling=None,
        rope_theta=THETA,
    )
    return {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": len(IDS),
        "has_no_defaults_at_init": False,
        "norm_before_residual": norm_before_residual,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "owner/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0.dev14",
        "target_hidden_size": None,
        "torch_dtype": "float32",
        "transformer_layer_config": layer,
        "transformers_version": "4.53.2",
        **more,
    }


def eagle3_reference(
    tensors: Mapping[str, Tensor],
    target: Path,
    tokens: list[int],
    features: Tensor,
    *,
    layer: str = "midlayer.",
    normed_residual: bool = False,
) -> Tensor:
    """Return the logits [drafted, target's vocabulary] of the first drafted tokens, in double precision.

    Pair i is the feature of position i [3, width] with the token after it. The last pair gives the first row of logits;
    every further token of ``tokens`` is paired with the layer's own last output. Tokens that cannot be drafted have -inf.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    theirs = load_file(target / "model.safetensors")
    embed = w.get("embed_tokens.weight", theirs["model.embed_tokens.weight"].double())

    def linear(name: str, x: Tensor) -> Tensor:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros(1).double())

    def norm(name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + EPS) * w[f"{name}.weight"]

    def rotated(x: Tensor, position: int) -> Tensor:
        half = len(x) // 2
        angles = [position * THETA ** (-2 * i / len(x)) for i in range(half)]
        cos, sin = (torch.tensor([f(a) for a in angles] * 2).double() for f in (math.cos, math.sin))
        return x * cos + torch.cat([-x[half:], x[:half]]) * sin

    size = WIDTH // HEADS
    seen: list[tuple[list[Tensor], list[Tensor]]] = []

    def pair(hidden: Tensor, token: int) -> Tensor:
        normed = norm(f"{layer}hidden_norm", hidden)
        both = torch.cat([norm(f"{layer}input_layernorm", embed[token]), normed])
        q, k, v = (linear(f"{layer}self_attn.{name}_proj", both).split(size) for name in "qkv")
        seen.append(([rotated(one, len(seen)) for one in k], list(v)))
        here, out = len(seen) - 1, []
        for number, query in enumerate(q):
            shared = number // (HEADS // KV_HEADS)
            turned = rotated(query, here)
            weights = torch.stack([turned @ keys[shared] for keys, _ in seen]) / math.sqrt(size)
            values = torch.stack([values[shared] for _, values in seen])
            out.append(weights.softmax(0) @ values)
        residual = normed if normed_residual else hidden
        x = residual + linear(f"{layer}self_attn.o_proj", torch.cat(out))
        y = norm(f"{layer}post_attention_layernorm", x)
        gate, up = linear(f"{layer}mlp.gate_proj", y), linear(f"{layer}mlp.up_proj", y)
        return x + linear(f"{layer}mlp.down_proj", gate * torch.sigmoid(gate) * up)

    for feature, token in zip(features, tokens[1:], strict=False):
        a = pair(linear("fc", feature.double().flatten()), token)
    outputs = [a]
    for token in tokens[len(features) + 1 :]:
        outputs.append(pair(outputs[-1], token))
    last = w.get("lm_head.weight")
    if last is None:  # the target's, restricted to the tokens that can be drafted
        last = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"]).double()
        if "d2t" in w:
            last = last[list(IDS)]
    rows = torch.stack([last @ norm("norm", a) for a in outputs])
    if "d2t" not in tensors:
        return rows
    full = torch.full((len(rows), VOCABULARY), -torch.inf).double()
    full[:, torch.arange(len(rows[0])) + tensors["d2t"]] = rows
    return full


# ---- Medusa ---------------------------------------------------------------------------------------


def medusa_tensors(
    heads: int = 5, blocks: int = 1, last: bool = True, prefix: str = ""
) -> dict[str, Tensor]:
    """Return heads with their authors' names (FasterDecoding/medusa-vicuna-7b-v1.3), prefixed as in whole models."""
    random, made = Random(7), {}
    for head in range(heads):
        for block in range(blocks):
            made[f"{prefix}{head}.{block}.linear.weight"] = random(WIDTH, WIDTH)
            made[f"{prefix}{head}.{block}.linear.bias"] = random(WIDTH)
        if last:
            made[f"{prefix}{head}.{blocks}.weight"] = random(VOCABULARY, WIDTH)
    return made


def vllm_medusa_tensors(
    heads: int = 3, blocks: int = 2, biases: bool = False, shared: bool = False
) -> dict[str, Tensor]:
    """Return heads with vLLM's names (abhigoyal/vllm-medusa-vicuna-7b-v1.3); ``shared``: one last matrix for all."""
    random, made = Random(8), {}
    for head in range(heads):
        for block in range(blocks):
            made[f"blocks.{head}.layers.{block}.weight"] = random(WIDTH, WIDTH)
            if biases:
                made[f"blocks.{head}.layers.{block}.bias"] = random(WIDTH)
        if not shared:
            made[f"lm_heads.{head}.weight"] = random(VOCABULARY, WIDTH)
    if shared:
        made["lm_head.weight"] = random(VOCABULARY, WIDTH)
    return made


def medusa_config(heads: int = 5, blocks: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "medusa_num_heads": heads,
        "medusa_num_layers": blocks,
        "transformers_version": "4.31.0",
        **more,
    }


def vllm_medusa_config(heads: int = 3, blocks: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["MedusaModel"],
        "hidden_size": WIDTH,
        "model_type": "medusa",
        "num_heads": heads,
        "num_hidden_layers": blocks,
        "truncated_vocab_size": VOCABULARY,
        "vocab_size": VOCABULARY,
        **more,
    }


def medusa_reference(
    tensors: Mapping[str, Tensor], target: Path, heads: int, state: Tensor
) -> Tensor:
    """Return a state's logits [heads, vocabulary] in double precision: W2 (h + SiLU(W1 h + b)), block after block."""
    w = {
        name.removeprefix("medusa_head.").removeprefix("medusa_heads."): tensor.double()
        for name, tensor in tensors.items()
    }
    vllm = any(name.startswith("blocks.") for name in w)
    rows = []
    for head in range(heads):
        x, block = state.double(), 0
        while True:
            at = f"blocks.{head}.layers.{block}" if vllm else f"{head}.{block}.linear"
            if f"{at}.weight" not in w:
                break
            y = w[f"{at}.weight"] @ x + w.get(f"{at}.bias", torch.zeros(1).double())
            x, block = x + y * torch.sigmoid(y), block + 1
        own = w.get(f"lm_heads.{head}.weight" if vllm else f"{head}.{block}.weight")
        if own is None and vllm:
            own = w["lm_head.weight"]
        if own is None:
            theirs = load_file(target / "model.safetensors")
            own = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"]).double()
        rows.append(own @ x)
    return torch.stack(rows)
