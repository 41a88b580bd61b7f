"""Convert a GGUF file of the Llama architecture into a folder in transformers' format.

Weights are dequantised to float32, which is exact; in 16 bits, the values of a GGUF block (a scale times a
small integer, plus an offset) would be rounded. Rows of queries and keys are put back in transformers' order,
and a head that is the embedding table is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semspec.deferred import torch
from semspec.errors import UserError
from semspec.storage.files import write_json, write_text

ARCHITECTURE = "llama"
PRE_TOKENIZER = "smollm"  # GPT-2's, with every digit a token of its own
_CONTROL = 3  # gguf.TokenType of tokens that only the chat template writes
_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Write config, weights, tokenizer and chat template of a GGUF file into an existing folder.

    Raise UserError if the file has another architecture or another tokenizer.
    """
    from gguf import GGUFReader

    reader = GGUFReader(source)
    told = {name: field.contents() for name, field in reader.fields.items()}
    found = told.get("general.architecture"), told.get("tokenizer.ggml.pre")
    if found != (ARCHITECTURE, PRE_TOKENIZER):
        raise UserError(
            f"{source} has the architecture {found[0]} and the tokenizer {found[1]}: only"
            f" {ARCHITECTURE} with {PRE_TOKENIZER} can be converted"
        )
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    write_json(folder / "config.json", _config(told, tied))
    write_json(folder / "generation_config.json", _ids(told))
    _write_weights(reader, told, folder / "model.safetensors")
    _write_tokenizer(told, folder)


def _ids(told: Mapping[str, Any]) -> dict[str, int]:
    ids = {name: f"tokenizer.ggml.{key}_token_id" for name, key in
           (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))}  # fmt: skip
    return {name: int(told[key]) for name, key in ids.items() if key in told}


def _config(told: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    def of(name: str) -> Any:
        return told[f"{ARCHITECTURE}.{name}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": of("embedding_length"),
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": of("rope.dimension_count"),
        "rms_norm_eps": round(of("attention.layer_norm_rms_epsilon"), 12),  # stored in 32 bits
        "max_position_embeddings": of("context_length"),
        "rope_theta": of("rope.freq_base"),
        "rope_parameters": {"rope_type": "default", "rope_theta": of("rope.freq_base")},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "vocab_size": len(told["tokenizer.ggml.tokens"]),
        **_ids(told),
    }


def _write_weights(reader: Any, told: Mapping[str, Any], path: Path) -> None:
    from gguf import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if layer is None:
            tensors[_TENSORS[tensor.name]] = weight
            continue
        number, part = layer.groups()
        if part in heads:
            weight = _split_halves(weight, told[f"{ARCHITECTURE}.attention.{heads[part]}"])
        tensors[f"model.layers.{number}.{_OF_A_LAYER[part]}.weight"] = weight
    save_file(tensors, path, metadata={"format": "pt"})


def _split_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder every head's rows: GGUF has rotary pairs side by side, transformers half a head apart."""
    pairs = weight.view(heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _write_tokenizer(told: Mapping[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = told["tokenizer.ggml.tokens"], told["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in told["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {name.replace("_id", ""): tokens[number] for name, number in _ids(told).items()}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": told[f"{ARCHITECTURE}.context_length"],
            "clean_up_tokenization_spaces": False,
            **named,
        },
    )
    write_text(folder / "chat_template.jinja", told["tokenizer.chat_template"])
