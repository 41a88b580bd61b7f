"""Steps inside one server with a useless small model: it is hardly queried, and the target decodes as if alone.

The draft model has random weights. What remains of its drafts, and everything written meanwhile, must be the target's.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from semspec.sglang_plugin import rounds
from tests.sglang.test_tiny_models_load import rendered
from tests.support import sglang_env
from tests.support.pair import DRAFT, TARGET

pytestmark = pytest.mark.deep
LIMIT, CAP = 160, 24
RULE: dict[str, Any] = {"accept": "logprob", "threshold": -6.0, "whole_rounds": True}


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the draft's shape and tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "useless"
    files = shutil.ignore_patterns("*.safetensors", "manifest.json")
    shutil.copytree(DRAFT, folder, ignore=files)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(DRAFT)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(useless: Path) -> Iterator[Any]:
    asked = {
        "drafting": {"lm": {"model": str(useless), "adaptive": "steps"}},
        "verification": {},
    }
    with sglang_env.engine_inside(
        TARGET,
        asked,
        CAP,
        max_running_requests=8,
        max_total_tokens=900,
        schedule_conservativeness=0.01,  # take in more than there will be room for
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    return [tokenizer(question)["input_ids"] for question, _ in rendered(tokenizer, 4)]


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


def rows(target: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = target(torch.tensor([list(ids)])).logits[0]
    return found


def passes(engine: Any) -> Counter[str]:
    (state,) = engine.get_server_info()["internal_states"]
    return Counter(state["semspec_passes"])


def check(target: Any, prompt: Sequence[int], answer: Any) -> int:
    """Each token is the target's first choice, or of a step that the rule kept; return how many drafts were judged."""
    text = answer["output_ids"]
    told = rounds.read(answer["meta_info"], text, upto=1)
    assert sum(len(done.tokens) for done in told) == len(text) - 1
    given = rows(target, [*prompt, *text])[len(prompt) - 1 : -1]
    kept = [0]  # the first token is SGLang's
    for done in told:
        kept += [*[1] * len(done.kept), *[0] * (len(done.tokens) - len(done.kept))]
    choices, chances = given.argmax(-1).tolist(), given.log_softmax(-1)
    for i, (token, own) in enumerate(zip(text, kept, strict=True)):
        if own:
            assert chances[i, token] >= RULE["threshold"] - 1e-3
        else:
            assert token == choices[i]
    return sum(bool(done.drafted) for done in told)


def test_the_target_decodes_by_itself_and_texts_are_its_own(
    engine: Any, prompts: Any, target: Any
) -> None:
    params = {"temperature": 0, "max_new_tokens": LIMIT, "custom_params": {"semspec": RULE}}
    judged = 0
    for some in (prompts[:1], prompts[:2], prompts * 2):
        before = passes(engine)
        answers = engine.generate(input_ids=some, sampling_params=params)
        for prompt, answer in zip(some, answers, strict=True):
            judged += check(target, prompt, answer)
        new = passes(engine) - before
        assert new["plain"] > 3 * new["drafted"], new
    assert judged > 4
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0


def test_requests_that_sglang_cannot_draw_alike_go_beside(
    engine: Any, prompts: Any, target: Any
) -> None:
    """Penalties, grammars and log-probabilities: no decoding pass then, and the same texts."""
    plain = {"temperature": 0, "max_new_tokens": 60}
    by_steps = {**plain, "custom_params": {"semspec": RULE}}
    given = [
        ({}, by_steps),
        ({"return_logprob": True}, by_steps),
        ({}, {**plain, "regex": "[a-z ]{20,40}"}),
        ({}, {**plain, "custom_params": {"semspec": {"accept": "off"}}}),
        ({}, {**plain, "frequency_penalty": 0.5}),
    ]

    async def together() -> list[Any]:
        return await asyncio.gather(
            *(
                engine.async_generate(input_ids=prompts[i % 4], sampling_params=params, **more)
                for i, (more, params) in enumerate(given)
            )
        )

    found = engine.loop.run_until_complete(together())
    check(target, prompts[0], found[0])
    check(target, prompts[1], found[1])
    assert len(found[1]["meta_info"]["output_token_logprobs"]) == len(found[1]["output_ids"])
    greedy = engine.generate(input_ids=prompts[3], sampling_params=plain)["output_ids"]
    choices = rows(target, [*prompts[3], *greedy]).argmax(-1)[len(prompts[3]) - 1 : -1]
    assert greedy == choices.tolist() == found[3]["output_ids"]
    told = [value for value, *_ in found[1]["meta_info"]["output_token_logprobs"]]
    text = found[1]["output_ids"]
    expected = rows(target, [*prompts[1], *text]).log_softmax(-1)[len(prompts[1]) - 1 : -1]
    assert told == pytest.approx([float(row[t]) for row, t in zip(expected, text, strict=True)], abs=1e-3)  # fmt: skip


def test_what_is_drawn_meanwhile_has_the_target_s_law(
    engine: Any, prompts: Any, target: Any
) -> None:
    """How often the likeliest token comes, in texts that decoding passes write at a high temperature."""
    off = {"custom_params": {"semspec": {"accept": "off"}}, "max_new_tokens": 60}
    before = passes(engine)
    found = engine.generate(
        input_ids=[prompts[0]] * 24, sampling_params={**off, "temperature": 3.0}
    )
    assert passes(engine)["drafted"] == before["drafted"]
    told = {t: surprise(target, prompts[0], found, t) for t in (1.0, 2.0, 3.0, 4.5)}
    assert abs(told[3.0]) < 4.5, told
    assert told[1.0] < -6 and told[4.5] > 6, told  # other temperatures are noticed


def surprise(target: Any, prompt: Sequence[int], found: Sequence[Any], temperature: float) -> float:
    """By how many standard deviations the likeliest token comes too often behind the first ones."""
    hits, mean, variance = 0, 0.0, 0.0
    for answer in found:
        text = answer["output_ids"]
        given = rows(target, [*prompt, *text])[len(prompt) : -1] / temperature
        best, chances = given.argmax(-1).tolist(), given.softmax(-1).amax(-1).tolist()
        hits += sum(token == own for token, own in zip(text[1:], best, strict=True))
        mean += sum(chances)
        variance += sum(chance * (1 - chance) for chance in chances)
    return float((hits - mean) / variance**0.5)
