"""The embedded pair, for tests that need real models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semspec.config import RunConfig, build, compose
from semspec.storage.packaged import beside_package
from tests.support.sglang_env import ON_GPU

TARGET = beside_package("hub_artifacts") / "tiny-target"
DRAFT = beside_package("hub_artifacts") / "tiny-draft"


def configuration(*overrides: str) -> RunConfig:
    """Compose a configuration with fixed draft lengths, so that no clock decides, unless ``adaptive=true`` is given."""
    usual = ["adaptive=false"]
    if ON_GPU and not any(one.startswith("engine=") for one in overrides):
        usual.append("engine.device=cpu")  # what SGLang on the GPU is compared with
    return build(compose([*usual, *overrides]))


def reference_outputs(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Return the greedy fp32 output of transformers' own ``generate`` for each prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limit,
                do_sample=False,
            )
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs
