"""Model folders of any size that take no disk space: a real header in a sparse file."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# from config.json of Qwen/QwQ-32B and deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, with the bytes of their weights
QWQ: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
    "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 27648, "vocab_size": 152064,
    "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 40960,
}  # fmt: skip
QWQ_BYTES = 65_527_752_704
R1: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
    "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960, "vocab_size": 151936,
    "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 131072,
}  # fmt: skip
R1_BYTES = 3_554_214_752


def folder(path: Path, config: Mapping[str, Any], size: int) -> Path:
    """Create a model's folder with this config.json and ``size`` bytes of tensors, none of them written."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    count = 2 * config["num_hidden_layers"]
    each = size // count // 2 * 2
    tensors = {
        f"t{i}": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
        for i in range(count)
    }
    header = json.dumps(tensors).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + count * each)
    return path
