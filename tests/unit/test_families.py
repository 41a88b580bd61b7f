"""Configurations read by us agree with those read by transformers' own classes."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest

from semspec.models import families

READ = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
    *("tie_word_embeddings", "rope_parameters"),
)
OPTIONAL = ("head_dim", "attention_bias", "mlp_bias", "sliding_window", "layer_types")
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 6, "vocab_size": 99}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GIVEN: list[dict[str, Any]] = [
    {},
    SMALL,
    {**SMALL, "num_key_value_heads": 2, "rope_theta": 1e6, "torch_dtype": "bfloat16"},
    {**SMALL, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
    {**SMALL, "rope_scaling": LLAMA3, "max_position_embeddings": 65536},
    {**SMALL, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    {**SMALL, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {**SMALL, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 1e6},
    {**SMALL, "sliding_window": 16},
    {**SMALL, "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2},
    {**SMALL, "sliding_window": None, "use_sliding_window": True},
    {**SMALL, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "hidden_act": "gelu"},
    {**SMALL, "unknown": {"a": 1}, "eos_token_id": [1, 2], "architectures": ["X"]},
]
BROKEN = [{"hidden_size": "many"}, {"rms_norm_eps": None}, {"tie_word_embeddings": "yes"}]


def theirs(raw: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[raw["model_type"]].from_dict(deepcopy(raw))


@pytest.mark.parametrize("family", families.DEFAULTS)
@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
def test_a_configuration_is_read_as_transformers_reads_it(
    family: str, given: dict[str, Any]
) -> None:
    raw = {**given, "model_type": family}
    ours, expected = families.read(raw), theirs(raw)
    assert {n: getattr(ours, n) for n in READ} == {n: getattr(expected, n) for n in READ}
    for name in OPTIONAL:
        if hasattr(expected, name):
            assert getattr(ours, name) == getattr(expected, name), name


def test_as_many_heads_of_keys_as_of_queries_where_none_are_given() -> None:
    raw = {**SMALL, "num_key_value_heads": None, "model_type": "llama"}
    assert families.read(raw).num_key_value_heads == theirs(raw).num_key_value_heads == 4


@pytest.mark.parametrize("family", families.DEFAULTS)
@pytest.mark.parametrize("given", BROKEN, ids=lambda given: next(iter(given)))
def test_what_transformers_refuses_is_refused(family: str, given: dict[str, Any]) -> None:
    raw = {**SMALL, **given, "model_type": family}
    with pytest.raises(Exception) as expected:
        theirs(raw)
    with pytest.raises(type(expected.value)):
        families.read(raw)


def test_a_model_is_loaded_without_the_heavy_parts_of_transformers() -> None:
    """They take longer to import than all else that a run does before its first token."""
    heavy = [
        "torch._dynamo",
        "sklearn",
        "transformers.modeling_utils",
        "transformers.generation.utils",
    ]
    code = (
        "import sys; from semspec.engines.hf import Hf; from tests.support.pair import TARGET;"
        "from semspec.models.text import Text; Hf().load(str(TARGET)); Text(str(TARGET));"
        f"print(*[name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
