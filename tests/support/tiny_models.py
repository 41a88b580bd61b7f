"""Random-weight models of every family that engine=hf supports, made once per test session."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from semspec.engines.hf import Hf
from semspec.types import Answer, Context, Generate, Query, Read, Sampling

VOCABULARY = 97
GREEDY = Sampling(temperature=0.0)

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 640,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 160,
}


def _heads(heads: int, kv_heads: int) -> dict[str, int]:
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads}


FAMILIES: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, _heads(2, 1) | {"tie_word_embeddings": True}),
    "llama-biases": (
        LlamaConfig,
        LlamaForCausalLM,
        _heads(4, 2) | {"attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "llama-llama3": (LlamaConfig, LlamaForCausalLM, _heads(2, 2) | {"rope_parameters": _LLAMA3}),
    "mistral": (MistralConfig, MistralForCausalLM, _heads(4, 2) | {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, _heads(4, 2)),
    "qwen2-yarn": (Qwen2Config, Qwen2ForCausalLM, _heads(2, 1) | {"rope_parameters": _YARN}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, _heads(4, 2) | {"head_dim": 16}),
}


@cache
def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="semspec-tiny-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@cache
def reference(family: str) -> Any:
    """Return transformers' own model, with weights large enough that the tokens matter."""
    config_class, model_class, options = FAMILIES[family]
    torch.manual_seed(sorted(FAMILIES).index(family))
    model = model_class(config_class(**_SHAPE, **options)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0.0, 0.3 if name.endswith("bias") else 0.2)
    return model


@cache
def folder(family: str) -> Path:
    at = _home() / family
    reference(family).save_pretrained(at)
    return at


def load(family: str = "llama", **options: Any) -> Any:
    """Return a fresh engine."""
    options.setdefault("device", "cpu")
    return Hf(**options).load(str(folder(family)))


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def context(prompt: Sequence[int], key: int = 0) -> Context:
    return Context(key, prompt)


def query(
    at: Context,
    *reads: Read,
    sampling: Sampling = GREEDY,
    generate: Generate | None = None,
    seed: int = 0,
    **more: Any,
) -> Query:
    rng = random.Random(seed)
    return Query("target", at, sampling, rng, reads=reads, generate=generate, **more)


def ask(engine: Any, *args: Any, **more: Any) -> Answer:
    answer: Answer = engine.answer([query(*args, **more)])[0]
    return answer


def truth(family: str, ids: Sequence[int], **options: Any) -> Any:
    """Return transformers' outputs for one sequence."""
    with torch.inference_mode():
        return reference(family)(torch.tensor([list(ids)]), **options)


class Marks:
    """A boundary that ends a unit after (or before) certain tokens."""

    def __init__(self, after: Sequence[int] = (), before: Sequence[int] = ()) -> None:
        self.after, self.before, self.seen = set(after), set(before), 0

    def feed(self, token: int) -> int | None:
        self.seen += 1
        if token in self.before and self.seen > 1:
            return -1
        return 0 if token in self.after else None
