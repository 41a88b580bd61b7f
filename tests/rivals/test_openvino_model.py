"""The OpenVINO writer: its graph gives transformers' logits, for a prompt and for its continuation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from rivals.base import Workload
from rivals.openvino_model import MODEL, write_ir
from transformers import AutoModelForCausalLM

from tests.support.pair import DRAFT, TARGET

EXACT = {  # its cache has 8 bits unless it is told otherwise
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "INFERENCE_NUM_THREADS": 1,
}


@pytest.mark.parametrize("folder", [TARGET, DRAFT], ids=lambda folder: folder.name)
def test_logits_are_those_of_transformers(
    folder: Path, reasoning: Workload, tmp_path: Path
) -> None:
    write_ir(folder, tmp_path)
    made: Any = ov.Core().compile_model(str(tmp_path / MODEL), "CPU", EXACT).create_infer_request()
    ids = list(reasoning.problems[0].ids)
    found = []
    for start, end in ((0, 20), (20, 27), (27, 28)):  # a prompt, then several tokens, then one
        part = np.array([ids[start:end]], dtype=np.int64)
        asked = {
            "input_ids": part,
            "attention_mask": np.ones((1, end), dtype=np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        found.append(np.array(made.infer(asked)["logits"][0]))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        wanted = model(torch.tensor([ids[:28]])).logits[0].numpy()
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-3, rtol=1e-4)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi", "rope_parameters": {}}))
    with pytest.raises(ValueError, match="no plain Llama model, but phi"):
        write_ir(tmp_path, tmp_path / "made")
