"""Reward-guided decoding: scores of real classifiers, by our pass and by transformers'."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForTokenClassification,
)

from semspec.driver import Driver
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.models.location import ModelConfig
from semspec.rules.rsd import Rsd
from semspec.types import Context, Draft, Query, Read, Sampling, What
from tests.support.binding import run_of
from tests.support.words import Words

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
KINDS: dict[str, tuple[Any, Any, int]] = {
    "one label": (LlamaConfig, LlamaForSequenceClassification, 1),
    "two labels": (LlamaConfig, LlamaForSequenceClassification, 2),
    "token classifier": (Qwen2Config, Qwen2ForTokenClassification, 2),  # its head has a bias
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    config_class, model_class, labels = KINDS[request.param]
    torch.manual_seed(1)
    made = model_class(config_class(**SHAPE, num_labels=labels)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" not in name:
                weight.normal_(0.0, 0.2)
    made.save_pretrained(tmp_path / "reward")
    made.folder = tmp_path / "reward"
    return made


def truth(model: Any, ids: list[int]) -> float:
    with torch.inference_mode():
        states = model.model(torch.tensor([ids])).last_hidden_state
        logits = model.score(states)[0, -1]
    return float(logits.sigmoid() if len(logits) == 1 else logits.softmax(-1)[1])


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_rewards_are_transformers_own(model: Any, threshold: float) -> None:
    engine = Hf(device="cpu").load(str(model.folder))
    rng = random.Random(0)
    prompt, tokens = ([rng.randrange(1, 97) for _ in range(n)] for n in (9, 12))
    draft = Draft(tokens, [4, 11])  # the last token only revealed the end
    rule = Rsd(threshold=threshold, model=ModelConfig(path=str(model.folder)))
    rule = rule.bind(run_of({}, "sentence", 0.6, {"reward": model.folder}))
    assert rule.models()["reward"].path == str(model.folder)
    context = Context(1, prompt)
    kit = Words().kit(sampling=Sampling(0.6))
    plan = rule.open(kit).judge(context, draft)
    (done,) = Driver({"reward": engine}).run([(context, plan)])  # the target is not asked
    verdict = done.value
    expected = [truth(model, prompt + tokens[:end]) for end in (4, 11)]
    if threshold == 0.0:
        assert verdict.keep == 12 and verdict.handover is None
        assert verdict.scores == pytest.approx(expected, abs=1e-4)
    else:
        assert verdict.keep == 0 and verdict.handover is not None
        assert verdict.scores == pytest.approx(expected[:1], abs=1e-4)


def test_a_classifier_offers_no_reads_over_the_vocabulary(model: Any) -> None:
    engine = Hf(device="cpu").load(str(model.folder))
    assert What.HIDDEN in engine.offers
    assert not engine.offers & {What.PROBS, What.LOGITS, What.TOP_K, What.LOGPROBS}
    query = Query("reward", Context(1, [3, 4]), Sampling(), random.Random(), tokens=[5])
    read = Read(What.HIDDEN, layers=(-1,))
    query.reads = (read,)
    assert engine.answer([query])[0][read].shape == (2, 1, 32)


def edit(folder: Path, **tensors: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    found = load_file(path)
    for name, tensor in tensors.items():
        key = name.replace("_", ".")
        found.pop(key, None)
        if tensor is not None:
            found[key] = tensor
    save_file(found, path, {"format": "pt"})


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        Rsd().bind(run_of({}, "paragraph", 0.6, {"reward": folder}))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_folders_without_a_reward_model_are_refused(model: Any) -> None:
    edit(model.folder, score_weight=torch.zeros(5, 32))
    assert "1 or 2 rows (shape [5, 32])" in refused(model.folder)
    edit(model.folder, score_weight=None)
    assert "no such tensor" in refused(model.folder)
    (model.folder / "model.safetensors").write_bytes(b"1234")
    assert "model.safetensors cannot be read" in refused(model.folder)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_wrong_options_are_refused(threshold: float) -> None:
    with pytest.raises(UserError, match="give a reward from 0 to 1"):
        Rsd(threshold=threshold)
