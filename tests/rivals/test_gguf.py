"""The GGUF writer: ``gguf`` reads the model back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from rivals.gguf_model import write_gguf
from safetensors.torch import load_file

from tests.support.pair import DRAFT, TARGET

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}  # fmt: skip


def read_back(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the file's tensors by transformers' names, queries and keys in its order."""
    found = {}
    for tensor in GGUFReader(file).tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in OTHERS:
            found[OTHERS[tensor.name]] = values
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in ("attn_q", "attn_k"):
            d = config["head_dim"]
            # row 2i of a head is i of its first half, row 2i + 1 is i of its second half
            places = [h * d + i // 2 + (d // 2) * (i % 2) for h in range(len(values) // d) for i in range(d)]  # fmt: skip
            values, pairs = np.empty_like(values), values
            values[places] = pairs
        found[f"model.layers.{layer}.{NAMES[part]}.{kind}"] = values
    return found


@pytest.mark.parametrize("folder", [TARGET, DRAFT], ids=lambda folder: folder.name)
def test_every_tensor_comes_back(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_gguf(folder, tmp_path / "model.gguf")
    found = read_back(tmp_path / "model.gguf", config)
    weights = load_file(folder / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        np.testing.assert_array_equal(found[name], tensor.to(torch.float32).numpy(), name)


def test_eight_bits_are_near_and_smaller(tmp_path: Path) -> None:
    config = json.loads((TARGET / "config.json").read_text())
    for kind in ("f32", "q8_0"):
        write_gguf(TARGET, tmp_path / kind, kind)
    whole, rounded = (read_back(tmp_path / kind, config) for kind in ("f32", "q8_0"))
    assert (tmp_path / "q8_0").stat().st_size < 0.35 * (tmp_path / "f32").stat().st_size
    for name, values in whole.items():
        step = np.abs(values).max() / 127  # of the block with the largest number
        assert np.abs(values - rounded[name]).max() <= 0.51 * step + 1e-3 * np.abs(values).max(), name  # fmt: skip
        assert values.ndim == 1 or (values != rounded[name]).any()


def test_what_it_says_of_the_model(tmp_path: Path) -> None:
    write_gguf(TARGET, tmp_path / "model.gguf")
    config = json.loads((TARGET / "config.json").read_text())
    told = {n: f.contents() for n, f in GGUFReader(tmp_path / "model.gguf").fields.items()}
    assert told["general.architecture"] == "llama"
    assert told["llama.block_count"] == config["num_hidden_layers"]
    assert told["llama.attention.head_count_kv"] == config["num_key_value_heads"]
    assert told["llama.rope.freq_base"] == config["rope_parameters"]["rope_theta"]
    assert told["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(config["rms_norm_eps"])
    tokens = told["tokenizer.ggml.tokens"]
    assert len(tokens) == config["vocab_size"] == len(set(tokens))
    assert tokens[2] == "<|im_end|>" and told["tokenizer.ggml.eos_token_id"] == 2


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "phi", "rope_parameters": {}}')
    with pytest.raises(ValueError, match="no plain Llama model, but phi"):
        write_gguf(tmp_path, tmp_path / "model.gguf")
