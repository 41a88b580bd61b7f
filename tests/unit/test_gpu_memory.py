"""Placing models on GPUs: the driver's table, model sizes, and shares of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semspec.errors import UserError
from semspec.models import memory
from semspec.models.location import ModelConfig
from semspec.models.memory import GIB, Gpu, ModelSize, Place, gib, place, size_from
from tests.support import nvidia_smi

# config.json of Qwen/QwQ-32B and deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, and the bytes of their weights
QWQ = {
    "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
R1 = {
    "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
PAIR = {
    "target": size_from("QwQ-32B", QWQ, 65_527_752_704),
    "draft": size_from("R1-1.5B", R1, 3_554_214_752),
}
H100, A6000, RTX = 81_559, 49_140, 24_564  # MiB, as their drivers say


def cards(*mebibytes: int) -> list[Gpu]:
    return [Gpu(index, "a card", size << 20, size << 20) for index, size in enumerate(mebibytes)]


def used(size: ModelSize, one: Place) -> int:
    """What a server takes of each of its GPUs in the end."""
    part = size.part(one.ranks)
    return part.weights + one.tokens * part.token + memory.reserved(one.chunk)


def test_sizes_are_those_that_a_gpu_holds() -> None:
    target, draft = PAIR["target"], PAIR["draft"]
    assert gib(target.weights) == "61 GiB" and target.token == 256 << 10
    assert gib(draft.weights) == "3.3 GiB" and draft.token == 28 << 10
    assert size_from("x", QWQ | {"torch_dtype": "float32"}, 400).weights == 200
    assert size_from("x", QWQ | {"quantization_config": {"bits": 4}}, 400).weights == 400
    assert size_from("x", QWQ | {"head_dim": 64}, 400).token == 128 << 10
    assert size_from("x", {"text_config": QWQ}, 400).token == 256 << 10
    compressed = QWQ | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert size_from("x", compressed, 400).token == 64 * 576 * 2


def test_a_32b_target_and_its_draft_share_one_card_of_80_gb() -> None:
    """With fixed shares of .75 and .7 the target got 59 GiB for 61 GiB of weights."""
    placed = place(PAIR, cards(H100), 32768 + memory.PROMPT)
    target, draft = placed["target"], placed["draft"]
    assert target.gpus == draft.gpus == (0,) and target.shared and draft.shared
    free = H100 << 20
    held = target.share * free
    assert PAIR["target"].weights + 34816 * PAIR["target"].token <= held + (1 << 27)
    left = free - used(PAIR["target"], target)
    assert PAIR["draft"].weights + 34816 * PAIR["draft"].token <= draft.share * left + (1 << 27)
    total = used(PAIR["target"], target) + used(PAIR["draft"], draft)
    assert 0.99 * free < total <= free
    assert min(target.tokens, draft.tokens) >= 34816 and target.chunk == 1024
    assert place(PAIR, cards(H100), 2560)["target"].chunk == 2048


def test_with_two_cards_each_model_has_its_own() -> None:
    placed = place(PAIR, cards(H100, H100), 4096)
    assert placed["target"].gpus == (0,) and placed["draft"].gpus == (1,)
    assert not placed["target"].shared and not placed["draft"].shared
    assert 0.8 < placed["target"].share < 0.97


def test_a_target_is_split_over_as_few_cards_as_it_needs() -> None:
    placed = place(PAIR, cards(A6000, A6000), 10240)
    assert placed["target"].gpus == (0, 1) and placed["draft"].gpus == (1,)
    assert placed["target"].shared and placed["draft"].shared
    on_the_second = used(PAIR["target"], placed["target"]) + used(PAIR["draft"], placed["draft"])
    assert on_the_second <= A6000 << 20
    three = place(PAIR, cards(A6000, A6000, A6000), 10240)
    assert three["target"].gpus == (0, 1) and three["draft"].gpus == (2,)
    four = place(PAIR, cards(*[RTX] * 4), 2560)
    assert four["target"].gpus == (0, 1, 2, 3) and four["draft"].gpus == (3,)


def test_replicas_of_the_target_have_cards_of_their_own() -> None:
    several = {**PAIR, "target-replica-2": PAIR["target"]}
    placed = place(several, cards(*[A6000] * 5), 10240)
    found = {role: one.gpus for role, one in placed.items()}
    assert found == {"target": (0, 1), "draft": (4,), "target-replica-2": (2, 3)}
    placed = place(several, cards(*[H100] * 2), 4096)  # no card is left for the draft
    assert placed["draft"].gpus == placed["target"].gpus == (0,)
    assert placed["target-replica-2"].gpus == (1,) and not placed["target-replica-2"].shared
    with pytest.raises(UserError, match="or start fewer replicas") as refused:
        place(several, cards(*[A6000] * 3), 10240)
    assert "use 4 such GPUs" in str(refused.value)
    assert place(several, cards(*[A6000] * 4), 10240)["draft"].gpus == (1,)


@pytest.mark.parametrize(
    ("mebibytes", "tokens", "told"),
    [
        ((RTX,), 2560, ("has 1 GPU with 24 GiB free", "use 4 such GPUs", "quantised")),
        ((RTX, RTX), 2560, ("has 2 GPUs with 24 GiB free each", "use 4 such GPUs", "quantised")),
        ((H100,), 80_000, ("has 1 GPU with 80 GiB free", "give max_new_tokens=", "use 2 such GPUs")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_ways_out(
    mebibytes: tuple[int, ...], tokens: int, told: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refused:
        place(PAIR, cards(*mebibytes), tokens)
    line = str(refused.value)
    assert "\n" not in line
    assert "QwQ-32B (61 GiB of weights) and R1-1.5B (3.3 GiB of weights) need" in line
    assert f"a problem of {tokens:,} tokens" in line
    assert all(part in line for part in told), line


def test_the_way_out_that_is_named_is_one() -> None:
    with pytest.raises(UserError) as refused:
        place(PAIR, cards(H100), 80_000)
    named = int(str(refused.value).partition("max_new_tokens=")[2].split()[0])
    place(PAIR, cards(H100), named + memory.PROMPT)
    with pytest.raises(UserError):
        place(PAIR, cards(H100), named + memory.PROMPT + 512)


def test_named_gpus_are_kept() -> None:
    placed = place(PAIR, cards(*[H100] * 4), 4096, {"target": [1, 2], "draft": [0]})
    assert placed["target"].gpus == (1, 2) and placed["draft"].gpus == (0,)
    placed = place(PAIR, cards(H100, H100), 4096, {"draft": [0]})
    assert placed["target"].gpus == (1,), "the target takes one that is free"
    with pytest.raises(UserError, match="target_gpu=7: this machine has no such GPU; it has 0, 1"):
        place(PAIR, cards(H100, H100), 4096, {"target": [7]})
    with pytest.raises(UserError, match="choose other GPUs"):
        place(PAIR, cards(RTX, H100), 4096, {"target": [0]})


def test_memory_that_others_use_does_not_count() -> None:
    busy = [Gpu(0, "a card", H100 << 20, 60 * GIB)]
    with pytest.raises(UserError, match="60 GiB free"):
        place(PAIR, busy, 2560)


def test_one_device_of_the_hf_engine() -> None:
    memory.check_device(PAIR, H100 << 20, "cuda:0", 2560)
    with pytest.raises(
        UserError, match=r"engine=hf uses one device, and cuda:0 has 24 GiB free: "
    ) as no:
        memory.check_device(PAIR, RTX << 20, "cuda:0", 2560)  # fmt: skip
    assert "\n" not in str(no.value)


def test_the_driver_s_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = nvidia_smi.table(H100, RTX, free=(80_000, "[N/A]"), name="NVIDIA H100, PCIe")
    nvidia_smi.install(tmp_path, monkeypatch, text)
    first, second = memory.visible_gpus()
    assert (first.index, first.name, first.free) == (0, "NVIDIA H100, PCIe", 80_000 << 20)
    assert (second.index, second.free) == (1, RTX << 20)
    shown = {
        "1": [1],
        "1,0": [1, 0],
        "0,7,1": [0],
        "GPU-1a": [1],
        "": [],
        "-1": [],
    }
    for value, indices in shown.items():
        monkeypatch.setenv(memory.VISIBLE, value)
        assert [gpu.index for gpu in memory.visible_gpus()] == indices, value


@pytest.mark.parametrize(("text", "code"), [("half a line, of", 0), ("NVML: mismatch", 9)])
def test_a_driver_that_does_not_answer_is_one_line(
    text: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi.install(tmp_path, monkeypatch, text, code)
    with pytest.raises(memory.DriverError, match=text) as silent:
        memory.visible_gpus()
    assert "\n" not in str(silent.value) and "CUDA_VISIBLE_DEVICES=" in str(silent.value)
    monkeypatch.setenv(memory.VISIBLE, "")  # the way out that it names
    assert memory.visible_gpus() == []


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(memory.VISIBLE, raising=False)
    assert memory.visible_gpus() == []


def test_a_driver_without_a_gpu_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi.install(tmp_path, monkeypatch, memory.NONE)
    assert memory.visible_gpus() == []


def test_the_size_of_a_folder_is_that_of_its_files() -> None:
    size = memory.size_of(ModelConfig(path="embedded/tiny-target"))
    assert size.name == "embedded/tiny-target" and 9_000_000 < size.weights < 9_700_000
    assert size.token == 24 * 2 * 64 * 2 and size.context == 2048


def test_weights_that_a_repository_holds_twice_count_once() -> None:
    shards = {f"model-0000{n}-of-00002.safetensors": 10 for n in (1, 2)}
    assert memory.stored_bytes(shards | {"model.safetensors.index.json": 1}) == 20
    assert memory.stored_bytes({"model.safetensors": 7, "other.safetensors": 9}) == 7


def test_a_config_that_describes_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError) as refused:
        memory.size_of(ModelConfig(path=str(tmp_path)))
    assert "\n" not in str(refused.value)
