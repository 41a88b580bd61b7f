"""A folder in transformers' format written as GGUF, for llama.cpp: the Llama architecture, with or without biases.

    python scripts/rivals/gguf_model.py hub_artifacts/tiny-target target.gguf [--type q8_0]

Rows of queries and keys, and their biases, are reordered: GGUF has rotary pairs side by side, transformers half a
head apart. Whoever reads the file is given token ids and asked for token ids, so the tokenizer in it has every
token's bytes and none of the rules by which text is split.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from semspec.models.weights import interleave

Floats = NDArray[np.float32]

TYPES = ("f32", "q8_0")  # of matrices; vectors are float32 in both
_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, file: Path, kind: str = "f32") -> None:
    """Write config, weights and tokens of a model's folder into one file.

    Raise ValueError for a model that is not of the Llama architecture.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config["rope_parameters"]["rope_type"] != "default":
        raise ValueError(f"{folder} holds no plain Llama model, but {config['model_type']}")
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".part")
    writer = GGUFWriter(aside, "llama")
    _describe(writer, config, folder.name)
    _write_tokens(writer, folder, config["vocab_size"])
    for name, values in tensors(folder, config):
        if kind == "q8_0" and values.ndim == 2:
            writer.add_tensor(name, quantize(values, GGMLQuantizationType.Q8_0),
                              raw_dtype=GGMLQuantizationType.Q8_0)  # fmt: skip
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    aside.replace(file)


def tensors(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Floats]]:
    """Yield a model's tensors under GGUF's names, queries and keys reordered, in float32."""
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            tensor = tensor.to(torch.float32)
            if name in _TENSORS:
                if name != "lm_head.weight" or not config["tie_word_embeddings"]:
                    yield _TENSORS[name], tensor.numpy()
                continue
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            part, _, kind = rest.rpartition(".")  # kind: weight or bias
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                tensor = interleave(tensor, head_dim_of(config)).contiguous()
            yield f"blk.{number}.{_OF_A_LAYER[part]}.{kind}", tensor.numpy()


def head_dim_of(config: Mapping[str, Any]) -> int:
    given: int | None = config.get("head_dim")
    return given or int(config["hidden_size"] // config["num_attention_heads"])


def _describe(writer: Any, config: Mapping[str, Any], name: str) -> None:
    head_dim = head_dim_of(config)
    writer.add_name(name)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_tokens(writer: Any, folder: Path, size: int) -> None:
    """Write the tokens of a byte-level BPE; rows of the embedding table beyond them are unused tokens."""
    from gguf import TokenType

    whole = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    known = {number: (token, TokenType.NORMAL) for token, number in whole["model"]["vocab"].items()}
    for added in whole["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        known[added["id"]] = (added["content"], kind)
    tokens = [known.get(i, (f"[unused {i}]", TokenType.UNUSED)) for i in range(size)]
    merges = whole["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    writer.add_eos_token_id(ends["eos_token_id"])
    if ends.get("pad_token_id") is not None:
        writer.add_pad_token_id(ends["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from script_kit import parser

    known = parser(__doc__, type=("f32", f"of matrices: {', '.join(TYPES)}"))
    known.add_argument("folder", type=Path)
    known.add_argument("file", type=Path)
    given = known.parse_args()
    write_gguf(given.folder, given.file, given.type)
