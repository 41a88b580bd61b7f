"""Our rules with SGLang's own NGRAM drafter, which copies from what the server has generated before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec.sglang_plugin.settings import VARIABLE
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import TARGET, reference_outputs

pytestmark = pytest.mark.deep

LIMIT = 72
K, DELTA = 8, 0.99
LEAST = -20.0  # log-probability of a step's least likely token
KNOWN = 4  # problems that the server solves first
ASKED = {"verification": {"calibration": "embedded/arc-tiny", "allow_mismatch": True}}


@pytest.fixture(scope="module")
def ngram() -> Iterator[Any]:
    with (
        mock.patch.dict(os.environ, {VARIABLE: json.dumps(ASKED)}),
        sglang_env.engine(
            TARGET,
            speculative_algorithm="NGRAM",
            speculative_num_draft_tokens=8,
            max_running_requests=4,
        ) as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    return [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 8)]


@pytest.fixture(scope="module")
def greedy(prompts: list[list[int]]) -> list[list[int]]:
    return reference_outputs(prompts, LIMIT)


def generate(engine: Any, prompts: list[list[int]], asked: dict[str, Any] | None = None) -> Any:
    params: dict[str, Any] = {"temperature": 0, "max_new_tokens": LIMIT}
    if asked is not None:
        params["custom_params"] = {"semspec": asked}
    return engine.generate(input_ids=prompts, sampling_params=params)


def test_ngram_drafting_writes_what_the_target_writes(
    ngram: Any, prompts: Any, greedy: Any
) -> None:
    prompts, greedy = prompts[:KNOWN], greedy[:KNOWN]
    for asked in (None, {"accept": "lossless"}, {"accept": "topk_delta", "delta": 0.0}):
        answers = generate(ngram, prompts, asked)
        assert [answer["output_ids"] for answer in answers] == greedy
    # the third time it has read the texts twice
    assert all(answer["meta_info"]["spec_num_correct_drafts"] > 0 for answer in answers)


def test_a_looser_rule_keeps_what_it_may_and_nothing_else(
    ngram: Any, prompts: Any, greedy: Any
) -> None:
    """Every token is the target's first, or among its k likeliest and at most delta behind."""
    generate(ngram, prompts[:KNOWN])
    prompts, greedy = prompts[KNOWN:], greedy[KNOWN:]  # it proposes what the others' texts say
    answers = generate(ngram, prompts, {"accept": "topk_delta", "k": K, "delta": DELTA})
    outputs = [answer["output_ids"] for answer in answers]
    assert outputs != greedy
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    others = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            rows = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        p = rows.softmax(-1)
        best, likeliest = p.max(-1).values, p.topk(K).indices
        for row, token in enumerate(output):
            if token != int(p[row].argmax()):
                others += 1
                assert token in likeliest[row]
                assert p[row, token] >= best[row] - DELTA
    assert others > 0


def test_whole_steps_are_judged(ngram: Any, prompts: Any, greedy: Any) -> None:
    """Kept tokens are likely enough, all others are the target's own first; token rules share the batch."""
    generate(ngram, prompts[:KNOWN])
    prompts, greedy = prompts[KNOWN:], greedy[KNOWN:]  # it proposes what the others' texts say
    asked = {"semspec": {"accept": "logprob", "threshold": LEAST}}
    params = [{"temperature": 0, "max_new_tokens": LIMIT, "custom_params": asked} for _ in prompts]
    params[-1].pop("custom_params")
    *answers, plain = ngram.generate(input_ids=prompts, sampling_params=params)
    assert plain["output_ids"] == greedy[-1]
    assert [answer["output_ids"] for answer in answers] != greedy[:-1]
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    others = kept = 0
    for prompt, answer in zip(prompts, answers, strict=False):
        text, at = answer["output_ids"], 1  # behind the first token, which is SGLang's
        with torch.inference_mode():
            rows = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
        told, first = rows.log_softmax(-1), rows.argmax(-1).tolist()
        for one in answer["meta_info"]["semspec_rounds"]:
            for place in range(at, at + one["kept"]):
                kept += 1
                others += text[place] != first[place]
                assert told[place, text[place]] >= LEAST - 1e-3
            at += one["kept"]
            written = one["salvaged"] + one["target"]
            assert text[at : at + written] == first[at : at + written]
            at += written
        assert at == len(text)
    assert kept > 20 and others > 0
