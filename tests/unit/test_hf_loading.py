"""engine=hf loads models, or refuses them in one line that says what to do."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.registry import plugins
from semspec.types import Read, What
from tests.support.tiny_models import ask, context, folder, load, reference, tokens, truth

LOGITS = Read(What.LOGITS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder("llama-biases"), tmp_path / "model"))


def edit(at: Path, name: str = "config.json", **changes: Any) -> None:
    content = json.loads((at / name).read_text())
    (at / name).write_text(json.dumps(content | changes))


def refused(at: Path | str, **options: Any) -> str:
    with pytest.raises(UserError) as error:
        Hf(**{"device": "cpu", **options}).load(str(at))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_hf_is_an_engine_that_offers_all_but_scores() -> None:
    assert plugins("engine")["hf"].cls is Hf
    assert Hf.offers == frozenset(What) - {What.SCORE}


def test_an_engine_tells_its_sizes_and_stops() -> None:
    engine = load("qwen3", max_context=100)
    assert (engine.vocabulary, engine.context_limit) == (97, 100)
    assert (engine.layers, engine.width, engine.stop_ids) == (3, 32, frozenset())


def test_sharded_weights_load(copy: Path) -> None:
    reference("llama-biases").save_pretrained(copy, max_shard_size="20KB")
    (copy / "model.safetensors").unlink()
    assert len(list(copy.glob("*.safetensors"))) > 2
    prompt = tokens(9)
    answer = ask(Hf(device="cpu").load(str(copy)), context(prompt), LOGITS)
    assert (answer[LOGITS] - truth("llama-biases", prompt).logits[0, -1:]).abs().max() < 1e-4
    next(copy.glob("*-00002-of-*")).unlink()
    assert "the download is incomplete, download it again" in refused(copy)


def test_stop_ids_come_from_both_configs(copy: Path) -> None:
    edit(copy, eos_token_id=5)
    (copy / "generation_config.json").unlink()
    assert Hf(device="cpu").load(str(copy)).stop_ids == {5}
    (copy / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert Hf(device="cpu").load(str(copy)).stop_ids == {3, 4}


def test_loading_is_quick() -> None:
    load("qwen3")
    started = time.perf_counter()
    load("qwen3")
    assert time.perf_counter() - started < 1


def test_a_sliding_window_is_accepted_only_beyond_the_context(copy: Path) -> None:
    edit(copy, model_type="mistral", sliding_window=64, attention_bias=False, mlp_bias=False)
    weights = load_file(copy / "model.safetensors")
    weights = {name: w for name, w in weights.items() if not name.endswith("bias")}
    save_file(weights, copy / "model.safetensors")
    assert "set max_context to 64 or less" in refused(copy)
    assert Hf(device="cpu", max_context=64).load(str(copy)).context_limit == 64


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gpt2"}, "not model type 'gpt2'; way out: engine=sglang"),
    ({"model_type": None}, "not model type 'None'; way out: engine=sglang"),
    ({"hidden_act": "gelu"}, "hidden_act=gelu; way out: engine=sglang"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
    ({"intermediate_size": 40}, "has shape [48, 32], but config.json says [40, 32]"),
    ({"num_hidden_layers": 4}, "lacks the tensor model.layers.3."),
    ({"num_hidden_layers": 2}, "has a tensor model.layers.2."),
    ({"attention_bias": False}, "_proj.bias, which a llama model does not have"),
    ({"hidden_size": "wide"}, "cannot use"),
    (
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}},
        "longrope",
    ),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS, ids=[str(c[0]) for c in CONFIGS])
def test_unsupported_configurations_are_refused(
    copy: Path, changes: dict[str, Any], words: str
) -> None:
    edit(copy, **changes)
    assert words in refused(copy)


def truncate(at: Path) -> None:
    weights = at / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def scribble(at: Path) -> None:
    (at / "model.safetensors").write_bytes(b"<html>not found</html>" * 20)


def pickle_only(at: Path) -> None:
    (at / "model.safetensors").rename(at / "pytorch_model.bin")


def no_weights(at: Path) -> None:
    (at / "model.safetensors").unlink()


def no_config(at: Path) -> None:
    (at / "config.json").unlink()


def broken_config(at: Path) -> None:
    (at / "config.json").write_text("{")


def list_config(at: Path) -> None:
    (at / "config.json").write_text("[]")


def stray_shard(at: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "../../elsewhere.safetensors"}}
    (at / "model.safetensors.index.json").write_text(json.dumps(index))


def empty_index(at: Path) -> None:
    (at / "model.safetensors.index.json").write_text("{}")


def two_files(at: Path) -> None:
    (at / "model.safetensors").rename(at / "a.safetensors")
    shutil.copy(at / "a.safetensors", at / "b.safetensors")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, "model.safetensors cannot be read (its header"),
        (scribble, "model.safetensors cannot be read (its header"),
        (pickle_only, "only pickled weights, which are never read"),
        (no_weights, "download or train the model first"),
        (no_config, "give a model's folder"),
        (broken_config, "download the model again"),
        (list_config, "not a JSON object"),
        (stray_shard, "do not trust it"),
        (empty_index, "has no weight_map"),
        (two_files, "2 safetensors files"),
    ],
)
def test_damaged_folders_are_refused(copy: Path, harm: Callable[[Path], None], words: str) -> None:
    harm(copy)
    assert words in refused(copy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp8"}, "choose auto, fp32 or bf16"),
        ({"device": "toaster"}, "choose auto, cpu or cuda"),
        ({"device": "meta"}, "runs on cpu and cuda"),
        ({"device": "cuda:99"}, "choose device=auto or device=cpu"),
        ({"max_context": 641}, "choose 1 to 640"),
        ({"chunk": 0}, "chunk of at least 1"),
        ({"threads": -1}, "threads of at least 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in refused(folder("llama"), **options)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "nowhere", "a/b/c"])
def test_a_missing_folder_is_refused_with_the_way_out(name: str) -> None:
    assert "point model.path at a local folder" in refused(name)


def test_a_file_in_place_of_a_folder_is_refused() -> None:
    assert "is a file" in refused(folder("llama") / "config.json")


def test_a_missing_model_is_refused_offline_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refused("owner/name-that-is-not-there")
    assert "HF_HUB_OFFLINE is set" in message
    assert "hf download" in message


def test_threads_are_set_when_asked() -> None:
    before = torch.get_num_threads()
    load(threads=0)
    assert torch.get_num_threads() == before
    load(threads=1)
    assert torch.get_num_threads() == 1
