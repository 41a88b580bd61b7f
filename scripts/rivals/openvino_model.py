"""A folder in transformers' format written as an OpenVINO model that its text generation pipelines read.

    python scripts/rivals/openvino_model.py hub_artifacts/tiny-target FOLDER

The graph is the Llama architecture (with or without biases) in float32, written operation by operation, with the
cache as its state: the shape that OpenVINO turns into paged attention. Nothing of transformers or optimum is
needed but the tokenizer, which a pipeline with a draft model asks for though token ids go in and come out.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

MODEL = "openvino_model.xml"


def write_ir(folder: Path, into: Path) -> None:
    """Write a model's folder as ``openvino_model.xml`` and ``.bin``, with its configurations beside them."""
    import openvino as ov

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config["rope_parameters"]["rope_type"] != "default":
        raise ValueError(f"{folder} holds no plain Llama model, but {config['model_type']}")
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= {name: t.to(torch.float32).numpy() for name, t in load_file(file).items()}
    into.mkdir(parents=True, exist_ok=True)
    ov.save_model(Graph(config, weights).model(), into / MODEL, compress_to_fp16=False)
    for name in (
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    ):  # fmt: skip
        if (folder / name).exists():
            shutil.copy(folder / name, into / name)
    _write_tokenizer(folder, into)


def _write_tokenizer(folder: Path, into: Path) -> None:
    """Write the tokenizer: by it a pipeline asks whether target and draft have the same one."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    made = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, part in zip(("tokenizer", "detokenizer"), made, strict=True):
        ov.save_model(part, into / f"openvino_{name}.xml")


class Graph:
    """The operations of one model."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        from openvino import opset13

        self.op, self.config, self.weights = opset13, config, weights
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads

    def model(self) -> Any:
        import openvino as ov

        op = self.op
        self.ids = self.input("input_ids", [-1, -1], np.int64)
        self.attended = self.input("attention_mask", [-1, -1], np.int64)
        self.positions = self.input("position_ids", [-1, -1], np.int64)
        self.beams = self.input("beam_idx", [-1], np.int32)
        self.sinks: list[Any] = []
        self.batch = op.gather(op.shape_of(self.ids), self.whole([0]), self.whole(0))
        self.mask = self.causal_mask()
        self.cos, self.sin = self.turns()
        embedded = self.weights["model.embed_tokens.weight"]
        x = op.gather(op.constant(embedded), op.convert(self.ids, "i32"), self.whole(0))
        for layer in range(self.config["num_hidden_layers"]):
            x = self.block(x, layer)
        x = self.norm(x, "model.norm")
        head = embedded if self.config["tie_word_embeddings"] else self.weights["lm_head.weight"]
        logits = op.result(op.matmul(x, op.constant(head), False, True))
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = [self.ids, self.attended, self.positions, self.beams]
        return ov.Model([logits], self.sinks, inputs, "llama")

    def input(self, name: str, shape: list[int], kind: Any) -> Any:
        made = self.op.parameter(shape, kind, name=name)
        made.output(0).get_tensor().set_names({name})
        return made

    def whole(self, values: Any) -> Any:
        return self.op.constant(np.array(values, dtype=np.int64))

    def causal_mask(self) -> Any:
        """Return [batch, 1, new, all]: True where a position may look."""
        op = self.op
        count = op.gather(op.shape_of(self.ids), self.whole(1), self.whole(0))
        total = op.gather(op.shape_of(self.attended), self.whole(1), self.whole(0))
        columns = op.range(self.whole(0), total, self.whole(1), "i64")
        rows = op.range(op.subtract(total, count), total, self.whole(1), "i64")
        causal = op.less_equal(columns, op.unsqueeze(rows, self.whole([1])))
        there = op.convert(self.attended, "boolean")
        return op.logical_and(causal, op.unsqueeze(there, self.whole([1, 2])))

    def turns(self) -> tuple[Any, Any]:
        """Return cosine and sine of the rotary embedding, [batch, 1, new, head_dim]."""
        op = self.op
        powers = np.arange(0, self.head_dim, 2, dtype=np.float32) / self.head_dim
        frequencies = 1.0 / np.float32(self.config["rope_parameters"]["rope_theta"]) ** powers
        positions = op.convert(op.unsqueeze(self.positions, self.whole(2)), "f32")
        angles = op.multiply(
            positions, op.constant(frequencies.reshape(1, 1, -1).astype(np.float32))
        )
        both = op.unsqueeze(op.concat([angles, angles], -1), self.whole(1))
        return op.cos(both), op.sin(both)

    def block(self, x: Any, layer: int) -> Any:
        op, at = self.op, f"model.layers.{layer}"
        h = self.norm(x, f"{at}.input_layernorm")
        x = op.add(x, self.attention(h, layer, f"{at}.self_attn"))
        h = self.norm(x, f"{at}.post_attention_layernorm")
        gate, up = (self.linear(h, f"{at}.mlp.{name}_proj") for name in ("gate", "up"))
        return op.add(x, self.linear(op.multiply(op.swish(gate), up), f"{at}.mlp.down_proj"))

    def attention(self, h: Any, layer: int, at: str) -> Any:
        op = self.op
        q = self.turned(self.split(self.linear(h, f"{at}.q_proj"), self.heads))
        k = self.turned(self.split(self.linear(h, f"{at}.k_proj"), self.kv_heads))
        v = self.split(self.linear(h, f"{at}.v_proj"), self.kv_heads)
        keys, values = self.cached(k, f"{layer}.key"), self.cached(v, f"{layer}.value")
        made = op.scaled_dot_product_attention(q, keys, values, self.mask)
        joined = op.reshape(op.transpose(made, self.whole([0, 2, 1, 3])),
                            self.whole([0, 0, self.heads * self.head_dim]), True)  # fmt: skip
        return self.linear(joined, f"{at}.o_proj")

    def split(self, x: Any, heads: int) -> Any:
        """Return [batch, heads, new, head_dim]."""
        shaped = self.op.reshape(x, self.whole([0, 0, heads, self.head_dim]), True)
        return self.op.transpose(shaped, self.whole([0, 2, 1, 3]))

    def turned(self, x: Any) -> Any:
        op, half = self.op, self.head_dim // 2
        one, last = self.whole([1]), self.whole([3])
        low = op.slice(x, self.whole([0]), self.whole([half]), one, last)
        high = op.slice(x, self.whole([half]), self.whole([np.iinfo(np.int64).max]), one, last)
        minus = op.multiply(high, op.constant(np.float32(-1)))
        rotated = op.concat([minus, low], -1)
        return op.add(op.multiply(x, self.cos), op.multiply(rotated, self.sin))

    def cached(self, new: Any, name: str) -> Any:
        """Append to the state, and return all of it with every query head's own copy."""
        op, kv, d = self.op, self.kv_heads, self.head_dim
        empty = op.broadcast(op.constant(np.float32(0)),
                             op.concat([self.batch, self.whole([kv, 0, d])], 0))  # fmt: skip
        variable = f"past_key_values.{name}"
        held = op.read_value(empty, variable, np.float32, [-1, kv, -1, d])
        past = op.gather(held, self.beams, self.whole(0))
        every = op.concat([past, new], 2)
        self.sinks.append(op.assign(every, variable))
        group = self.heads // kv
        if group == 1:
            return every
        shape = op.shape_of(every)
        batch, length = (op.gather(shape, self.whole([i]), self.whole(0)) for i in (0, 2))
        wide = op.concat([batch, self.whole([kv, group]), length, self.whole([d])], 0)
        copies = op.broadcast(
            op.unsqueeze(every, self.whole(2)), wide, broadcast_spec="BIDIRECTIONAL"
        )
        return op.reshape(copies, self.whole([0, self.heads, -1, d]), True)

    def norm(self, x: Any, name: str) -> Any:
        op = self.op
        mean = op.reduce_mean(op.power(x, op.constant(np.float32(2))), self.whole([-1]), True)
        root = op.sqrt(op.add(mean, op.constant(np.float32(self.config["rms_norm_eps"]))))
        scaled = op.multiply(x, op.divide(op.constant(np.float32(1)), root))
        return op.multiply(scaled, op.constant(self.weights[f"{name}.weight"]))

    def linear(self, x: Any, name: str) -> Any:
        made = self.op.matmul(x, self.op.constant(self.weights[f"{name}.weight"]), False, True)
        bias = self.weights.get(f"{name}.bias")
        return made if bias is None else self.op.add(made, self.op.constant(bias))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from script_kit import parser

    known = parser(__doc__)
    known.add_argument("folder", type=Path)
    known.add_argument("into", type=Path)
    given = known.parse_args()
    write_ir(given.folder, given.into)
