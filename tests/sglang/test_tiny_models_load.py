"""The embedded pair in a real SGLang engine: the same tokens in, the same tokens out.

SGLang loads tokenizers with its own code, which can differ from AutoTokenizer; for these two models, whole problems and
solutions show that it does not. In float32, greedy output of two correct forward passes is the same, so it is compared
token for token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec import world
from semspec.errors import UserError
from semspec.sglang_plugin.protocol import Ask, values
from semspec.types import Read, What
from tests.support import sglang_env

pytestmark = pytest.mark.deep

ARTIFACTS = Path(__file__).parents[2] / "hub_artifacts"
PROBLEMS, PROMPTS, NEW_TOKENS = 300, 6, 96


@pytest.fixture(scope="module", params=["tiny-draft", "tiny-target"])
def folder(request: pytest.FixtureRequest) -> Path:
    found = ARTIFACTS / request.param
    assert (found / "model.safetensors").exists(), f"{found} is missing: scripts/train_tiny_pair.py"
    return found


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Any]:
    with sglang_env.engine(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(folder: Path, tokenizer: Any) -> list[tuple[str, list[int], list[int]]]:
    """(prompt, its tokens, transformers' greedy continuation)"""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for question, _ in rendered(tokenizer, PROMPTS):
        ids = tokenizer(question)["input_ids"]
        written = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
        )[0, len(ids) :].tolist()
        rows.append((question, ids, written))
    return rows


def rendered(tokenizer: Any, count: int) -> list[tuple[str, str]]:
    """(prompt up to where the assistant begins, the whole turn) of problems of every domain."""
    rng = random.Random(20)
    pairs = []
    for i in range(count):
        domain = list(world.DOMAINS.values())[i % len(world.DOMAINS)]
        problem = domain.make(rng)
        message = [{"role": "user", "content": problem.question}]
        question = tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
        pairs.append((question, world.render_solution(problem, domain.solve(rng, problem))))
    return pairs


def sglang_tokenizer(folder: Path) -> Any:
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    return get_tokenizer(str(folder))


def test_sglang_reads_text_as_the_same_tokens(folder: Path, tokenizer: Any) -> None:
    theirs = sglang_tokenizer(folder)
    texts = [part for pair in rendered(tokenizer, PROBLEMS) for part in (*pair, "".join(pair))]
    texts += ["", "\n\n", " 7\n\n\n", "<think>\n</think>", "naïve Ω 一 🙂 <|im_end|>x"]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert theirs(text)["input_ids"] == ids, text
        assert theirs.encode(text) == ids, text
        assert theirs.decode(ids) == tokenizer.decode(ids), text


def test_sglang_renders_the_same_prompt_and_knows_the_same_end(
    folder: Path, tokenizer: Any
) -> None:
    theirs = sglang_tokenizer(folder)
    message = [{"role": "user", "content": "What is 2 + 3?"}]
    options = {"tokenize": False, "add_generation_prompt": True}
    assert theirs.apply_chat_template(message, **options) == tokenizer.apply_chat_template(
        message, **options
    )
    assert theirs.eos_token_id == tokenizer.eos_token_id is not None
    assert len(theirs) == len(tokenizer)


def test_greedy_output_from_tokens_is_that_of_transformers(engine: Any, expected: Any) -> None:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS}
    for question, ids, written in expected:
        got = engine.generate(input_ids=ids, sampling_params=sampling)
        assert got["output_ids"] == written, question
        assert got["meta_info"]["prompt_tokens"] == len(ids)


def test_greedy_output_from_text_in_one_batch_is_that_of_transformers(
    engine: Any, expected: Any, tokenizer: Any
) -> None:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS}
    answers = engine.generate([question for question, _, _ in expected], sampling_params=sampling)
    for got, (question, ids, written) in zip(answers, expected, strict=True):
        assert got["output_ids"] == written, question
        assert got["meta_info"]["prompt_tokens"] == len(ids)
        assert got["text"] == tokenizer.decode(written, skip_special_tokens=True)


def test_a_server_that_was_not_asked_for_the_plugin_gives_a_clear_error(
    engine: Any, expected: Any
) -> None:
    """It is installed here, and inert; the client does not take silence for a score."""
    sampling = {"max_new_tokens": 1, "custom_params": Ask(spans=((3, 6),), probe="c0ffee").params()}
    got = engine.generate(input_ids=expected[0][1], sampling_params=sampling)
    with pytest.raises(UserError, match="plugin is not loaded there") as caught:
        values([Read(What.SCORE, probe="c0ffee")], got["meta_info"], "http://127.0.0.1:30000")
    assert "\n" not in str(caught.value)
